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
_LOADED: Final = "_loaded"
_UNDECIDED: Final = "_undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """``rows`` have each key once. ``undecided`` are rows of a key that differ where no order says which one counts.

    Of ``repeated`` rows whose key occurs again, so many are ``loaded`` and so many ``rejected`` as undecided.
    """

    rows: DataFrame
    undecided: DataFrame
    repeated: int
    loaded: int
    rejected: int


def resolve(
    rows: DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    orders: Sequence[Order],
    keep: Callable[[DataFrame], DataFrame],
) -> Resolved | None:
    """One row a key; None where each key occurs once.

    Rows that are equal in ``columns`` are one; the others are decided by ``orders``, or not at all.

    ``keep`` persists a frame for as long as the result is used.

    Keys are counted by a hash first, which moves eight bytes a row; only rows whose hash occurs twice are sorted, so
    that a source without duplicates costs next to nothing, and a key of a million rows no more than its sort.
    """
    from pyspark.sql import functions as sf

    hashed = rows.select("*", sf.xxhash64(*map(quoted, key)).alias(_HASH))
    again = keep(hashed.groupBy(_HASH).count().where("count > 1").select(_HASH))
    if again.isEmpty():
        return None
    names = [*map(quoted, rows.columns)]
    repeated = keep(_decided(hashed.join(again, _HASH, "left_semi"), columns, key, orders))
    [counted] = repeated.agg(sf.count("*"), sf.count_if(_LOADED), sf.count_if(_UNDECIDED)).collect()
    single = hashed.join(again, _HASH, "left_anti").select(*names)
    return Resolved(
        rows=single.unionByName(repeated.where(_LOADED).select(*names)),
        undecided=repeated.where(_UNDECIDED).select(*names),
        repeated=counted[0],
        loaded=counted[1],
        rejected=counted[2],
    )


def _decided(rows: DataFrame, columns: Sequence[str], key: Sequence[str], orders: Sequence[Order]) -> DataFrame:
    """Of the rows of a key that the order puts first, one is loaded if all have the same in every column."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    keys = [sf.col(quoted(name)) for name in key]
    order = [_order(rows, number, each) for number, each in enumerate(orders)]
    ranks = sf.rank().over(Window.partitionBy(*keys).orderBy(*order)) if order else sf.lit(1)
    same = Window.partitionBy(*keys, sf.col(_RANK))
    nulls = [sf.isnull(quoted(name)) for name in columns]  # the hash passes over null: (a, null) was (null, a)
    content = sf.xxhash64(*map(quoted, columns), *nulls)
    alike = sf.min(content).over(same) == sf.max(content).over(same)
    one = sf.row_number().over(same.orderBy(sf.lit(0))) == 1
    first = sf.col(_RANK) == 1
    return rows.select("*", ranks.alias(_RANK)).select(
        "*", (first & alike & one).alias(_LOADED), (first & ~alike).alias(_UNDECIDED)
    )


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
