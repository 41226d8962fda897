"""Rows of the same key → the one that is loaded, by an order that the rules declare; never by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from ..identifier import quoted
from ..rules.rules import Order
from .checks import ORDER

__all__ = ["Resolved", "resolve"]


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
    """Return one row for each key; None if no key occurs twice.

    Rows that are equal in ``columns`` are one; the others are decided by ``orders``, or not at all.

    ``keep`` persists a frame for as long as the result is used.

    Keys are counted by a hash first, which moves eight bytes a row; only rows whose hash occurs twice are sorted, so
    that a source without duplicates costs next to nothing, and a key of a million rows no more than its sort.
    """
    hashed = rows.selectExpr("*", f"xxhash64({', '.join(map(quoted, key))}) AS _hash")
    repeated_hashes = keep(hashed.groupBy("_hash").count().where("count > 1").select("_hash"))
    if repeated_hashes.isEmpty():
        return None
    names = [*map(quoted, rows.columns)]
    repeated = keep(_decided(hashed.join(repeated_hashes, "_hash", "left_semi"), columns, key, orders))
    counts = [sf.expr(text) for text in ("count(*)", "count_if(_loaded)", "count_if(_undecided)")]
    [counted] = repeated.agg(*counts).collect()
    single = hashed.join(repeated_hashes, "_hash", "left_anti").select(*names)
    return Resolved(
        rows=single.unionByName(repeated.where("_loaded").select(*names)),
        undecided=repeated.where("_undecided").select(*names),
        repeated=counted[0],
        loaded=counted[1],
        rejected=counted[2],
    )


def _decided(rows: DataFrame, columns: Sequence[str], key: Sequence[str], orders: Sequence[Order]) -> DataFrame:
    """Of the rows of a key that the order puts first, one is loaded if all have the same in every column."""
    keys = ", ".join(map(quoted, key))
    order = ", ".join(_order(rows, number, order_rule) for number, order_rule in enumerate(orders))
    rank = f"rank() OVER (PARTITION BY {keys} ORDER BY {order})" if order else "1"
    window = f"PARTITION BY {keys}, _rank"
    nulls = [f"isnull({quoted(name)})" for name in columns]  # the hash passes over null: (a, null) was (null, a)
    content = f"xxhash64({', '.join([*map(quoted, columns), *nulls])})"
    alike = f"min({content}) OVER ({window}) = max({content}) OVER ({window})"
    is_first = f"row_number() OVER ({window} ORDER BY 0) = 1"
    return rows.selectExpr("*", f"{rank} AS _rank").selectExpr(
        "*",
        f"_rank = 1 AND {alike} AND {is_first} AS _loaded",
        f"_rank = 1 AND NOT ({alike}) AS _undecided",
    )


def _order(rows: DataFrame, number: int, order: Order) -> str:
    """Texts that are numbers count as numbers: 10 is greater than 9."""
    own = f"{ORDER}{number}"
    name = own if own in rows.columns else order.column
    column = quoted(name)
    if rows.schema[name].dataType.typeName() in {"string", "varchar", "char"}:
        column = f"if(trim({column}) <> '', struct(try_cast({column} AS decimal(38,9)), {column}), NULL)"
    return f"{column} {'DESC' if order.newest else 'ASC'} NULLS LAST"
