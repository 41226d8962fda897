"""Rows of the same key → the one that is loaded, by an order that the rules declare; never by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..identifier import quoted
from ..rules.rules import Order
from .checks import ORDER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Resolved", "resolve"]

_HASH: Final = "_hash"
_RANK: Final = "_rank"
_ALIKE: Final = "_alike"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """``rows`` have each key once. ``undecided`` are rows of a key that differ where no order says which one counts."""

    rows: DataFrame
    undecided: DataFrame | None
    """None: there are none of the same key."""


def resolve(
    rows: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    orders: Sequence[Order],
    keep: Callable[[DataFrame], DataFrame],
) -> Resolved:
    """One row a key. Rows that are equal in ``columns`` are one; the others are decided by ``orders``, or not at all.

    ``keep`` persists a frame for as long as the result is used.

    Keys are counted by a hash first, which moves eight bytes a row; only rows whose hash occurs twice are sorted, so
    that a source without duplicates costs next to nothing, and a key of a million rows no more than its sort.
    """
    from pyspark.sql import functions as sf

    hashed = rows.withColumn(_HASH, sf.xxhash64(*map(quoted, key)))
    again = keep(hashed.groupBy(_HASH).count().where("count > 1").select(_HASH))
    if again.isEmpty():
        return Resolved(rows=rows, undecided=None)
    single = hashed.join(again, _HASH, "left_anti").select(*map(quoted, rows.columns))
    ranked = keep(_ranked(hashed.join(again, _HASH, "left_semi"), columns, key, orders))
    best = ranked.where(sf.col(_RANK) == 1)
    decided = best.where(_ALIKE).dropDuplicates(list(key)).select(*map(quoted, rows.columns))
    undecided = best.where(~sf.col(_ALIKE)).select(*map(quoted, rows.columns))
    return Resolved(rows=single.unionByName(decided), undecided=undecided)


def _ranked(rows: DataFrame, columns: Sequence[str], key: Sequence[str], orders: Sequence[Order]) -> DataFrame:
    """Rank 1: first by the order. Alike: all of rank 1 have the same in every column."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    keys = [sf.col(quoted(name)) for name in key]
    order = [_order(rows, number, each) for number, each in enumerate(orders)]
    ranks = sf.rank().over(Window.partitionBy(*keys).orderBy(*order)) if order else sf.lit(1)
    ranked = rows.withColumn(_RANK, ranks)
    same = Window.partitionBy(*keys, sf.col(_RANK))
    nulls = [sf.isnull(quoted(name)) for name in columns]  # the hash passes over null: (a, null) was (null, a)
    content = sf.xxhash64(*map(quoted, columns), *nulls)
    return ranked.withColumn(_ALIKE, sf.min(content).over(same) == sf.max(content).over(same))


def _order(rows: DataFrame, number: int, order: Order) -> Column:
    """Texts that are numbers count as numbers: 10 is greater than 9."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType

    own = f"{ORDER}{number}"
    name = own if own in rows.columns else order.column
    column = sf.col(quoted(name))
    if isinstance(rows.schema[name].dataType, StringType):
        number_first = sf.struct(column.try_cast("decimal(38,9)"), column)
        column = sf.when(sf.trim(column) != "", number_first)
    return column.desc_nulls_last() if order.newest else column.asc_nulls_last()
