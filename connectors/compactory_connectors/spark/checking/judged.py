"""A source whose rows are judged: those that are loaded, those that are rejected, and how many for which reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from compactory.errors import ConfigError

from ..identifier import quoted
from ..rules.mapping import Filling
from ..sources.parts import numbered
from ..target import Received
from .checks import REASONS, Checks, Reason

__all__ = ["Counted", "Judged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Rows that were read, those of them that are rejected, and how many for each reason, most first."""

    read: int
    rejected: int
    reasons: Mapping[Reason, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """All rows of a source, with what is wrong with each, as ``checks`` find it."""

    checks: Checks

    @property
    def rows(self) -> DataFrame:
        """All rows, with the reasons why they are rejected."""
        return self.checks.rows

    @property
    def names(self) -> list[str]:
        """The columns of the target that are filled."""
        return [item.name for item in self.checks.mapped.fillings]

    @property
    def good(self) -> DataFrame:
        """Rows with which nothing is wrong."""
        return self.rows.where(f"{REASONS} IS NULL")

    @property
    def bad(self) -> DataFrame:
        """Rows that are rejected."""
        return self.rows.where(f"{REASONS} IS NOT NULL")

    @property
    def nothing(self) -> DataFrame:
        """No rows, which Spark knows without reading any."""
        return self.rows.where("false")

    def rejecting(self, rows: DataFrame, reason: Reason) -> DataFrame:
        """Some of these rows as rejected ones."""
        columns = [quoted(name) for name in rows.columns if name != REASONS]
        return rows.selectExpr(*columns, f"array({self.checks.number(reason)}) AS {REASONS}")

    def keys(self, rows: DataFrame) -> DataFrame:
        """The keys of some of these rows, where they can be read."""
        return rows.select(*map(quoted, self.checks.mapped.keys)).dropna()

    def located(self, rows: DataFrame) -> DataFrame:
        """Some of these rows with the lines that they are on."""
        return numbered(rows, self.checks.parts)

    def count(self, rows: DataFrame | None, received: Received | None = None) -> Counted:
        """Count these rows by what is wrong with them, and those that a target has received with them.

        Raises ConfigError for a field that no record has: a misspelt one would make every value of its column null.
        """
        fields, counted = self._fields(), dict[Reason, int]()
        filled = {item: received.filled[item.name] if received is not None else 0 for item in fields}
        read = objects = received.rows if received is not None else 0
        rejected, all_reasons = 0, self.checks.reasons
        for row in _groups(rows, fields) if rows is not None else ():
            reasons = [all_reasons[number] for number in row[REASONS] or ()]
            read += row["rows"]
            rejected += row["rows"] if reasons else 0
            objects += row["rows"] if all(reason.rule != "record" for reason in reasons) else 0
            for reason in reasons:
                counted[reason] = counted.get(reason, 0) + row["rows"]
            for number, item in enumerate(fields):
                refused = any(reason.rejects_a_value_of(item.name) for reason in reasons)
                filled[item] += row[f"filled{number}"] + refused
        if objects:
            _refuse_nowhere(item for item, number in filled.items() if not number)
        return Counted(read=read, rejected=rejected, reasons=dict(sorted(counted.items(), key=lambda each: -each[1])))

    def _fields(self) -> list[Filling]:
        """Columns filled from fields that records need not have."""
        if all(part.layout.declared for part in self.checks.parts):
            return []
        return [item for item in self.checks.mapped.fillings if item.source is not None and not item.rule.optional]


def _groups(rows: DataFrame, fields: Sequence[Filling]) -> list[Row]:
    """How many rows have the same faults, and how many of these have a value in each of the fields."""
    filled = [sf.count(quoted(item.name)).alias(f"filled{number}") for number, item in enumerate(fields)]
    return rows.groupBy(REASONS).agg(sf.count("*").alias("rows"), *filled).collect()


def _refuse_nowhere(fields: Iterable[Filling]) -> None:
    problems = [
        f"no record has a field {item.source!r}: say by `from` what fills the column, that it is `optional` (null),"
        " or to `ignore` it (left as it is)"
        for item in fields
    ]
    if problems:
        raise ConfigError(problems)
