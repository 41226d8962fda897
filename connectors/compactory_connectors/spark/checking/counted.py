"""Numbers of rejected rows by reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from compactory.errors import ConfigError

from ..identifier import quoted
from ..rules.mapping import Filling
from ..target import Received
from .checks import REASONS, Checks, Reason

__all__ = ["Counted", "count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Rows that were read, those of them that are rejected, and how many for each reason, most first."""

    read: int
    rejected: int
    reasons: Mapping[Reason, int]


def count(checks: Checks, rows: DataFrame | None, received: Received | None = None) -> Counted:
    """Count checked rows by their reasons, and add the rows that a target has ``received``.

    Raises ConfigError for a field that no record has: a misspelt one would make every value of its column null.
    """
    fields, counted = _fields(checks), dict[Reason, int]()
    filled = {item: received.filled[item.name] if received is not None else 0 for item in fields}
    read = objects = received.rows if received is not None else 0
    rejected = 0
    for row in _groups(rows, fields) if rows is not None else ():
        reasons = [checks.reasons[number] for number in row[REASONS] or ()]
        read += row["rows"]
        rejected += row["rows"] if reasons else 0
        objects += row["rows"] if all(reason.rule != "record" for reason in reasons) else 0
        for reason in reasons:
            counted[reason] = counted.get(reason, 0) + row["rows"]
        for number, item in enumerate(fields):
            refused = any(reason.rejects_a_value_of(item.name) for reason in reasons)
            filled[item] += row[f"filled{number}"] + refused
    if objects and (nowhere := [item for item, number in filled.items() if not number]):
        raise ConfigError(
            f"no record has a field {item.source!r}: say by `from` what fills the column, that it is `optional`"
            " (null), or to `ignore` it (left as it is)"
            for item in nowhere
        )
    return Counted(read=read, rejected=rejected, reasons=dict(sorted(counted.items(), key=lambda item: -item[1])))


def _fields(checks: Checks) -> list[Filling]:
    """Columns filled from fields that records need not have."""
    if all(part.layout.declared for part in checks.parts):
        return []
    return [item for item in checks.mapped.fillings if item.source is not None and not item.rule.optional]


def _groups(rows: DataFrame, fields: Sequence[Filling]) -> list[Row]:
    """Return the numbers of rows with equal reasons, and of their values in each of the fields."""
    filled = [sf.count(quoted(item.name)).alias(f"filled{number}") for number, item in enumerate(fields)]
    return rows.groupBy(REASONS).agg(sf.count("*").alias("rows"), *filled).collect()
