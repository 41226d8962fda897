"""From rows that a poll has handed over to the offset that covers them. Asks nobody."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from compactory_connectors.database.snapshot import Snapshot

from ..cursor.offset import PartialPoll, SourceOffset
from ..cursor.seen_snapshot import SeenSnapshot, widen
from ..plan.row_order import instant_of
from ..plan.table_plan import TablePlan
from ..postgres.server import PollSnapshot, RawRow
from ..record.record import RowFailed

__all__ = ["OffsetBuilder", "id_of", "recent"]


class OffsetBuilder:
    """Makes the offsets of one table's polls. Owned by one thread.

    ``ends`` are phase, place and xid of rows, the last row's at the end.
    """

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan
        self._unsafe: deque[tuple[int, SeenSnapshot]] = deque()

    def page(self, base: SourceOffset, visible: SeenSnapshot, ends: Sequence[RawRow]) -> SourceOffset:
        """The offset after a page that is not the poll's last."""
        phase, *places = ends[-1][:-1]
        after: tuple[int, *tuple[str | None, ...]] = (
            int(phase or 0),
            *(None if part is None else part.decode() for part in places),
        )
        return replace(self._progress(base, ends), partial_polls=(*base.partial_polls, PartialPoll(visible, after)))

    def poll(
        self,
        base: SourceOffset,
        at: PollSnapshot,
        xids: Iterable[int],
        visible: SeenSnapshot | None,
        ends: Sequence[RawRow],
    ) -> SourceOffset:
        """The offset after the poll's last page."""
        if self.plan.stamped:
            seen_snapshot = SeenSnapshot(at.snapshot)
        else:
            groups = (base.seen_snapshot, visible, *(page.seen_snapshot for page in base.partial_polls))
            known = [group.seen or () for group in groups if group]
            seen_snapshot = SeenSnapshot.above(at.snapshot, xids, *known)
        return replace(
            self._progress(base, ends).polled(seen_snapshot),
            durable=self._durable(base.durable, seen_snapshot, at),
            flushed=max(base.flushed, at.flushed),
        )

    def _durable(
        self, known: SeenSnapshot | None, seen_snapshot: SeenSnapshot, at: PollSnapshot
    ) -> SeenSnapshot | None:
        """The newest seen snapshot whose WAL has been flushed.

        Of those still waiting only the oldest and the newest are kept: the oldest is soon safe, even while writers
        keep the flush position behind.
        """
        if len(self._unsafe) == 2:
            self._unsafe.pop()
        self._unsafe.append((at.written, seen_snapshot))
        while self._unsafe and self._unsafe[0][0] <= at.flushed:
            known = self._unsafe.popleft()[1]
        return known

    def _progress(self, base: SourceOffset, ends: Sequence[RawRow]) -> SourceOffset:
        """The offset with the highest timestamp and id that were sent, as the real connector would have them."""
        living = [end[1:-1] for end in ends if end[0] != b"2" and end[1] is not None]
        if not living or not (self.plan.timestamps or self.plan.incrementing):
            return base
        if not self.plan.timestamps:
            return replace(
                base, incrementing=max(base.incrementing or 0, *(id_of(self.plan, row[0]) for row in living))
            )
        with_id = bool(self.plan.incrementing)
        stamp, highest = max((row[0] or b"", id_of(self.plan, row[1]) if with_id else 0) for row in living)
        milliseconds, nanos = instant_of(stamp.decode(), self.plan.zone)
        known = (base.timestamp, base.timestamp_nanos, base.incrementing or 0)
        if None not in known and (milliseconds, nanos, highest) <= known:
            return base
        incrementing = highest if with_id else None
        return replace(base, timestamp=milliseconds, timestamp_nanos=nanos, incrementing=incrementing)


def id_of(plan: TablePlan, raw: bytes | None) -> int:
    """The value of a row's incrementing column, 0 for NULL. Raises RowFailed if it has a fraction."""
    try:
        return int(raw or 0)
    except ValueError:
        column = plan.incrementing
        raise RowFailed(f"column {column}: not a whole number, which the incrementing column must be") from None


def recent(ends: Iterable[RawRow], snapshot: Snapshot) -> Iterator[int]:
    """The ids of row versions that the snapshot's floor does not cover, in 64 bits: of a large table few are."""
    wide = (widen(int(xid), snapshot.xmax) for xid in {end[-1] for end in ends} if xid is not None and xid != b"0")
    return (xid for xid in wide if xid >= snapshot.xmin)
