"""Which ids of a table were sent, as ranges: the cursor of mode ``incrementing``. Pure data, no I/O.

The real connector remembers the highest id and loses every row that commits later under a lower one. Ids that were
sent are mostly without a gap, so a few ranges hold them all, and a row that fills a gap late is found. A gap that a
rollback or a deletion left stays open; of those whose transactions have all ended only the newest are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

__all__ = ["KEPT_GAPS", "MOST_GAPS", "IdRanges", "Span"]

KEPT_GAPS = 256
"""Gaps that are watched although every transaction has ended that ran when they appeared: an application may take
blocks of ids from the sequence and use them much later."""

MOST_GAPS = 20_000
"""Gaps that an offset may hold (a message ends at 1 MB)."""

Span: TypeAlias = tuple[int, int]
"""A first and a last id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRanges:
    """Ids that were sent: everything up to ``floor`` (None: nothing is given up), and ``spans``, both ends included.

    ``unflushed`` are spans whose rows a crash of the server may still take back. ``marks`` are pairs of the highest
    id that a poll saw and that poll's ``xmax``: once every transaction below it has ended, no gap below the id is
    waited for.
    """

    floor: int | None = None
    spans: tuple[Span, ...] = ()
    unflushed: tuple[Span, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()

    @classmethod
    def up_to(cls, number: int) -> IdRanges:
        """Everything up to ``number`` counts as sent."""
        return cls(floor=number)

    @property
    def highest(self) -> int | None:
        """The highest id that counts as sent."""
        return self.spans[-1][1] if self.spans else self.floor

    def __contains__(self, number: int) -> bool:
        if self.floor is not None and number <= self.floor:
            return True
        place = bisect_right(self.spans, (number, float("inf")))
        return place > 0 and number <= self.spans[place - 1][1]

    def adding(self, ids: Iterable[int]) -> IdRanges:
        """With these ids sent, not yet safe from a crash."""
        fresh = _joined((number, number) for number in ids)
        spans, unflushed = _joined((*self.spans, *fresh)), _joined((*self.unflushed, *fresh))
        return replace(self, spans=spans, unflushed=unflushed).raised(self.floor)

    def flushed(self, spans: Iterable[Span]) -> IdRanges:
        """With these safe from a crash."""
        return replace(self, unflushed=_without(self.unflushed, spans))

    def after_crash(self) -> IdRanges:
        """Without what a crash may have taken back: those ids may be given to other rows now."""
        return replace(self, spans=_without(self.spans, self.unflushed), unflushed=())

    def marked(self, xmax: int) -> IdRanges:
        """With a mark for a finished poll; the oldest and the newest mark are kept."""
        if self.highest is None:
            return self
        return replace(self, marks=(*self.marks[:1], (self.highest, xmax)))

    def settled(self, xmin: int) -> tuple[IdRanges, int | None]:
        """Without the marks below which every transaction has ended at a snapshot's ``xmin``; the highest such id."""
        done = [number for number, xmax in self.marks if xmax <= xmin]
        left = tuple(mark for mark in self.marks if mark[1] > xmin)
        return replace(self, marks=left), max(done, default=None)

    def trimmed(self, settled: int | None, *, kept: int = KEPT_GAPS, most: int = MOST_GAPS) -> IdRanges:
        """With the oldest gaps given up: settled ones above ``kept``, and any above ``most``."""
        give_up = max(0, len(self.spans) - most)
        if settled is not None:
            old = bisect_right(self.spans, (settled, float("inf")))
            give_up = max(give_up, min(old, len(self.spans) - kept))
        return self if give_up <= 0 else self.raised(self.spans[give_up - 1][1])

    def pending(self) -> int:
        """How many gaps may still be filled by transactions that were open when the oldest mark was set."""
        return len(self.spans) if self.marks else 0

    def gaps(self) -> list[tuple[int | None, int | None]]:
        """Where unsent ids may be, ends excluded; None is no end."""
        lows = [self.floor, *(high for _, high in self.spans)]
        highs = [*(low for low, _ in self.spans), None]
        return list(zip(lows, highs, strict=True))

    def raised(self, floor: int | None) -> IdRanges:
        """With ``floor`` raised, and spans that it reaches taken into it."""
        if floor is None:
            return self
        reached = 0
        for low, high in self.spans:
            if low > floor + 1:
                break
            floor, reached = max(floor, high), reached + 1
        return replace(self, floor=floor, spans=self.spans[reached:])

    def fields(self) -> dict[str, Any]:
        """As JSON."""
        return {"floor": self.floor, "spans": self.spans, "unflushed": self.unflushed, "marks": self.marks}

    @classmethod
    def read(cls, value: dict[str, Any]) -> IdRanges:
        """Read :meth:`fields`. Raises KeyError, TypeError or ValueError when it is something else."""
        return cls(
            floor=None if value["floor"] is None else int(value["floor"]),
            spans=_pairs(value["spans"]),
            unflushed=_pairs(value["unflushed"]),
            marks=_pairs(value["marks"]),
        )


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sorted, without overlap, neighbours joined."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def _without(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """``spans``, which are sorted and apart, without the ids of ``taken``; in one pass over both."""
    found: list[Span] = []
    holes, at = _joined(taken), 0
    for start, end in spans:
        while at < len(holes) and holes[at][1] < start:
            at += 1
        reached = at
        while reached < len(holes) and holes[reached][0] <= end:
            low, high = holes[reached]
            if start < low:
                found.append((start, low - 1))
            start, reached = high + 1, reached + 1
        if start <= end:
            found.append((start, end))
        at = max(at, reached - 1)
    return tuple(found)


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(second)) for first, second in value)
