"""Makes the offset that covers the rows of a poll. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from compactory_connectors.connect.record.record import RowFailed

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import PartialPoll, RowPhase, SeenSnapshot
from ..planning.row_order import parse_timestamp
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import RawRow
from ..postgres.poll_transaction import PollSnapshot

__all__ = ["OffsetBuilder", "not_whole"]

_DELETED = RowPhase.DELETED.raw


class OffsetBuilder:
    """Makes the offsets of one table's polls. Owned by one thread."""

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan
        self._is_stamped = plan.stamped
        self._undurable: deque[tuple[int, SeenSnapshot]] = deque()

    def cover(
        self,
        base: SourceOffset,
        at: PollSnapshot,
        ends: Sequence[RawRow],
        visible: SeenSnapshot | None,
        xids: AbstractSet[int] | None,
    ) -> SourceOffset:
        """Return the offset after a chunk of rows. ``ends`` are phase, place and xid of its rows, the last row's last.

        ``visible`` is the seen snapshot of the poll's snapshot, if known. ``xids`` are recent ids of the poll's rows,
        None while it has more chunks. Timestamp and id are the highest that were sent, as the real connector has them.
        """
        plan, progress = self.plan, dict[str, Any]()
        living = [end[1:-1] for end in ends if end[0] != _DELETED and end[1] is not None]
        try:
            ids = [int(row[bool(plan.timestamps)] or 0) for row in living] if plan.incrementing else []
        except ValueError:
            raise not_whole(plan) from None
        if living and plan.timestamps:
            numbers = ids or [0] * len(living)
            stamp, highest = max((row[0] or b"", number) for row, number in zip(living, numbers, strict=True))
            milliseconds, nanos = parse_timestamp(stamp.decode(), plan.connector.columns.zone)
            former = (base.timestamp, base.timestamp_nanos, base.incrementing or 0)
            if None in former or (milliseconds, nanos, highest) > former:
                incrementing = highest if plan.incrementing else None
                progress = {"timestamp": milliseconds, "timestamp_nanos": nanos, "incrementing": incrementing}
        if xids is None:
            assert visible is not None
            phase, *places = ends[-1][:-1]
            texts = [None if part is None else part.decode() for part in places]
            partial = PartialPoll(visible, RowPhase(int(phase or 0)), tuple(texts))
            return replace(base, partial_polls=(*base.partial_polls, partial), **progress)
        seen_snapshot = SeenSnapshot(at.snapshot)
        if not self._is_stamped:
            groups = (base.seen_snapshot, visible, *[poll.seen_snapshot for poll in base.partial_polls])
            ids_seen = [xids, *[group.seen or () for group in groups if group]]
            floor, running = at.snapshot.xmin, {*at.snapshot.xip}
            # a running transaction was not seen: the xmin of a row frozen 2³² transactions ago has the same 32 bits
            above = frozenset([xid for group in ids_seen for xid in group if xid >= floor and xid not in running])
            seen_snapshot = SeenSnapshot(at.snapshot, above)
        # The newest seen snapshot whose WAL has been flushed. Of those still waiting only the oldest and the newest are
        # kept: the oldest is soon safe, even while writers keep the flush position behind.
        durable = base.durable
        if len(self._undurable) == 2:
            self._undurable.pop()
        self._undurable.append((at.written, seen_snapshot))
        while self._undurable and self._undurable[0][0] <= at.flushed:
            durable = self._undurable.popleft()[1]
        return base.completed(seen_snapshot, durable=durable, flushed=max(base.flushed, at.flushed), **progress)


def not_whole(plan: TablePlan) -> RowFailed:
    """Return the error for a row whose incrementing column has a fraction."""
    return RowFailed(f"column {plan.incrementing}: not a whole number, which the incrementing column must be")
