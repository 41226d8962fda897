"""Filters of a query leave out partitions, offsets and keys that no row of the result can have. Pure.

Spark applies each filter again, so a filter that is not understood here costs time only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ..topic.extent import Span

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the rows that a query wants; None where there is none. The last offset is included."""

    keys: frozenset[bytes] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    last: int | None = None
    since_ms: int | None = None
    """Records with an older timestamp are left out."""

    def by(self, filters: Iterable[Any], *, raw: bool) -> Bounds:
        """Return these bounds and those of Spark's filters.

        Only filters on the record's own columns count: `key` of raw records, `_key` beside the fields of values. A
        field of a value may have any name, also `key` or `timestamp`.
        """
        bounds = self
        prefix = "" if raw else "_"
        for condition in filters:
            path: tuple[str, ...] = getattr(condition, "attribute", ())
            if len(path) == 1 and path[0].startswith(prefix):
                column, value = path[0].removeprefix(prefix), getattr(condition, "value", None)
                bounds = bounds._by_column(column, type(condition).__name__, value)
        return bounds

    def spans(self, spans: Iterable[Span], *, every_record: bool) -> list[Span]:
        """Return the rest of these spans.

        The last offset counts only where ``every_record`` is a row: else an older record would become a key's newest.
        """
        bounded_spans: list[Span] = []
        for span in spans:
            if self.partitions is not None and span.partition not in self.partitions:
                continue
            start = max(span.start, self.first)
            end = span.end if self.last is None or not every_record else min(span.end, self.last + 1)
            if start < end:
                bounded_spans.append(replace(span, start=start, end=end))
        return bounded_spans

    def _by_column(self, column: str, kind: str, value: Any) -> Bounds:
        values = {"EqualTo": (value,), "EqualNullSafe": (value,), "In": value}.get(kind)
        if values is not None and None in values:
            values = None
        if column == "key" and values is not None:
            keys = frozenset(key.encode() if isinstance(key, str) else bytes(key) for key in values)
            return replace(self, keys=keys if self.keys is None else self.keys & keys)
        if column == "partition" and values is not None:
            numbers = frozenset(values)
            return replace(self, partitions=numbers if self.partitions is None else self.partitions & numbers)
        if column == "offset":
            return self._by_offset(kind, values, value)
        if column == "timestamp" and kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo") and value is not None:
            since = _rounded_down_ms(value)
            return replace(self, since_ms=since if self.since_ms is None else max(since, self.since_ms))
        return self

    def _by_offset(self, kind: str, values: Iterable[int] | None, value: Any) -> Bounds:
        low: int | None = None
        high: int | None = None
        if values is not None:
            low, high = min(values, default=None), max(values, default=None)
        elif value is not None:
            low = {"GreaterThan": value + 1, "GreaterThanOrEqual": value}.get(kind)
            high = {"LessThan": value - 1, "LessThanOrEqual": value}.get(kind)
        bounds = self if low is None else replace(self, first=max(self.first, low))
        return bounds if high is None else replace(bounds, last=high if bounds.last is None else min(bounds.last, high))


def _rounded_down_ms(value: datetime) -> int:
    """Return milliseconds since 1970, rounded down; a time without a zone is UTC, in which these sessions are."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000) - 1
