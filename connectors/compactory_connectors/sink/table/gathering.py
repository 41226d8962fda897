"""Which rows a call of the writer writes, in which order: of a key the newest where the mode allows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from .plan import Plan, Row

__all__ = ["Gathering", "Write"]


class Write(NamedTuple):
    """Rows that are written at once."""

    plan: Plan
    lines: list[str]


class Gathering:
    """Rows of one call by plan, newest first where the mode allows it; a further write where order asks for it."""

    def __init__(self, mode: str) -> None:
        self._inserts = mode == "insert"
        self._numbers = count()
        self._writes: list[Write] = []
        self._rows: dict[Plan, dict[Any, str]] = defaultdict(dict)
        self._deleted: dict[Plan, dict[Any, str]] = defaultdict(dict)

    def take(self, plan: Plan, rows: Sequence[Row]) -> None:
        """Rows of one plan, which come behind all that were taken before."""
        others = [(other, its) for other, its in self._rows.items() if other.target.text == plan.target.text]
        if plan.deletes:
            if self._inserts and others:
                self._flush()
            for _, its in others:
                for place, _ in rows:
                    its.pop(place, None)
            self._deleted[plan].update(rows)
        elif self._inserts:
            self._rows[plan].update((next(self._numbers), line) for _, line in rows)
        else:
            if not all(its.keys().isdisjoint(place for place, _ in rows) for other, its in others if other is not plan):
                self._flush()  # an older row of other columns has to be there first
            self._rows[plan].update(rows)

    def writes(self) -> list[Write]:
        """All of them, in order."""
        self._flush()
        return self._writes

    def _flush(self) -> None:
        for plan, lines in (*self._deleted.items(), *self._rows.items()):
            if lines:
                self._writes.append(Write(plan, [*lines.values()]))
        self._rows.clear()
        self._deleted.clear()
