"""Which rows a call of the writer writes, in which order: of a key the newest where the mode allows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ..record import SinkRecord
from .plan import Plan, Row

__all__ = ["Gathering", "Write", "Written"]

Written: TypeAlias = tuple[SinkRecord, Row]


class Write(NamedTuple):
    """Rows that one statement merges; ``replaced``: for some of them an older record of the key was left out."""

    plan: Plan
    rows: list[Written]
    replaced: bool


class Gathering:
    """Rows of one call by plan, newest first where the mode allows it; a further write where order asks for it."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._writes: list[Write] = []
        self._rows: dict[Plan, dict[Any, Written]] = defaultdict(dict)
        self._deleted: dict[Plan, dict[Any, Written]] = defaultdict(dict)
        self._replaced = False

    def take(self, plan: Plan, written: Sequence[Written]) -> None:
        """Rows of one plan, which come behind all that were taken before."""
        size = len(plan.key)
        if self._mode == "insert" and not plan.deletes:
            places: list[Any] = [record[:3] for record, _ in written]
        else:
            places = [(plan.target.text, *row[:size]) for _, row in written]
        if plan.deletes:
            if self._mode == "insert" and self._rows:
                self._flush()
            for rows in self._rows.values():
                for place in places:
                    rows.pop(place, None)
            self._deleted[plan].update(zip(places, written, strict=True))
            return
        others = (rows for other, rows in self._rows.items() if other is not plan)
        if not all(rows.keys().isdisjoint(places) for rows in others):
            self._flush()  # an older row of other columns has to be there first
        rows = self._rows[plan]
        before = len(rows)
        rows.update(zip(places, written, strict=True))
        self._replaced = self._replaced or len(rows) < before + len(written)

    def writes(self) -> list[Write]:
        """All of them, in order."""
        self._flush()
        return self._writes

    def _flush(self) -> None:
        for plan, rows in (*self._deleted.items(), *self._rows.items()):
            if rows:
                written = [*rows.values()]
                self._writes.append(Write(plan, written, self._replaced))
        self._rows.clear()
        self._deleted.clear()
