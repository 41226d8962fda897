"""Which rows a call of the writer writes, in which order: of a key the newest where the mode allows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from psycopg import sql

from ..failure import RecordRefused
from ..record import Records, SinkRecord
from .plan import Plan, Row
from .sink_config import SinkConfig
from .statements import delete, merge

__all__ = ["NOT_FITTING", "Gathering", "Placed", "Write", "Written", "write_of"]

Placed: TypeAlias = tuple[Plan, Row]
Written: TypeAlias = tuple[SinkRecord, Row]


class Write(NamedTuple):
    """Rows that one statement merges; ``replaced``: for some of them an older record of the key was left out."""

    plan: Plan
    rows: list[Written]
    statement: sql.Composed
    replaced: bool


NOT_FITTING = (TypeError, ValueError, AttributeError, KeyError, OverflowError)
"""What a value raises that does not fit its schema or its column."""


def write_of(mode: str, plan: Plan, records: Sequence[SinkRecord], rows: Sequence[Row]) -> Write:
    """One write of records that have values."""
    written = list(zip(records, rows, strict=True))
    if mode != "insert":
        size = len(plan.key)
        written = list(dict(zip([row[:size] for row in rows], written, strict=True)).values())
    return Write(plan, written, merge(mode, plan), len(written) < len(rows))


class Gathering:
    """Rows of one call by plan, newest first where the mode allows it; a further write where order asks for it."""

    def __init__(self, config: SinkConfig, records: Records, placed: Callable[[SinkRecord], Placed | None]) -> None:
        self._mode = config.insert_mode
        self._deletes = config.delete
        self._records = records
        self._placed = placed
        self._writes: list[Write] = []
        self._rows: dict[Plan, list[Written]] = defaultdict(list)
        self._newest: dict[Any, tuple[Plan, Written]] = {}
        self._deleted: dict[Any, tuple[Plan, Written]] = {}
        self._replaced = False

    def run(self) -> list[Write]:
        """The writes, in order. Sets records aside."""
        failed, waits, take = self._records.failed, self._records.waits, self._take
        for record in self._records:
            if failed and waits(record):
                continue
            try:
                take(record)
            except RecordRefused as error:
                self._records.set_aside(record, str(error))
            except NOT_FITTING:
                self._records.set_aside(record, "a field does not fit its schema or its column")
        self._flush()
        return self._writes

    def _take(self, record: SinkRecord) -> None:
        placed = self._placed(record)
        if placed is None:
            return
        plan, row = placed
        place = (plan.target.text, *row[: len(plan.key)])
        if plan.deletes:
            self._take_tombstone(place, plan, record, row)
        elif self._mode == "insert":
            if place in self._deleted:
                self._flush()
            self._rows[plan].append((record, row))
        else:
            before = self._newest.get(place)
            if place in self._deleted or (before is not None and before[0] is not plan):
                self._flush()  # the older row has to be there, or to be gone, first
            elif before is not None:
                self._replaced = True
            self._newest[place] = plan, (record, row)

    def _take_tombstone(self, place: Any, plan: Plan, record: SinkRecord, row: Row) -> None:
        if not self._deletes:
            raise RecordRefused("is a tombstone, and delete.enabled is false")
        if self._mode == "insert" and self._rows:
            self._flush()
        self._newest.pop(place, None)
        self._deleted[place] = plan, (record, row)

    def _flush(self) -> None:
        deleted: dict[Plan, list[Written]] = defaultdict(list)
        for plan, written in self._deleted.values():
            deleted[plan].append(written)
        for plan, rows in deleted.items():
            self._writes.append(Write(plan, rows, delete(plan.target, plan.key), self._replaced))
        for plan, written in self._newest.values():
            self._rows[plan].append(written)
        for plan, rows in self._rows.items():
            self._writes.append(Write(plan, rows, merge(self._mode, plan), self._replaced))
        self._rows = defaultdict(list)
        self._newest.clear()
        self._deleted.clear()
