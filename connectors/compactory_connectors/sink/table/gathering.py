"""Which rows a call of the writer writes, in which order: of a key the newest where the mode allows it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..record import SinkRecord
from .plan import Plan, Row

__all__ = ["Gathering", "Write", "Written", "copy_text"]

Written: TypeAlias = tuple[SinkRecord, Row]


class Write(NamedTuple):
    """Rows that one statement merges; ``replaced``: for some of them an older record of the key was left out."""

    plan: Plan
    rows: list[Written]
    text: str
    replaced: bool


_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPED = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def copy_text(rows: Iterable[Written]) -> str:
    """The rows in COPY's text format; made by columns, which takes a third of the time of a loop."""
    columns: list[Sequence[str]] = []
    for column in zip(*(row for _, row in rows), strict=True):
        special = _SPECIAL.search("".join(filter(None, column)))
        if special or None in column:
            columns.append([r"\N" if text is None else text.translate(_ESCAPED) for text in column])
        else:
            columns.append(column)
    return "".join(f"{line}\n" for line in map("\t".join, zip(*columns, strict=True)))


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
                self._writes.append(Write(plan, written, copy_text(written), self._replaced))
        self._rows.clear()
        self._deleted.clear()
