"""Reads the changes of one table since an offset, as pages of records to publish.

`conditions` selects row versions, `poll_rows` reads them in the order of emission, and `rendering` makes records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from functools import partial

import structlog
from psycopg import sql

from compactory_connectors.connect.record.record import LogUnreadable
from compactory_connectors.postgres.snapshot import Snapshot

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import Phase, ResendReason, SeenSnapshot
from ..planning.row_order import order_columns
from ..planning.table_plan import Reading, TablePlan
from ..postgres.chunk_reader import PAGE_ROWS, PageBytes, PageFill
from ..postgres.poll_transaction import PollSnapshot, poll_transaction
from ..postgres.server import Server, statement
from ..postgres.transactions import recent_xids, seen_xids
from .cursor_reader import CursorReader
from .offset_builder import OffsetBuilder
from .poll_rows import PollRows
from .reader import Expect, Load, Reader, RecordBatch

__all__ = ["TableReader", "open_reader"]

log = structlog.get_logger("compactory.source")

_HALF_XIDS = (1 << 31) - (1 << 24)  # comparing 32-bit ids is safe below this distance
_REFRESH_XIDS = 1 << 20
_MOST_SEEN = 100_000
_LONGEST_WAIT = 5.0  # seconds for Kafka in one snapshot


class TableReader(Reader):
    """Reads the changes of one table. Owned by one thread.

    The generator that :meth:`batches` returns holds a Postgres snapshot while it has more pages; close it to let go.
    It takes another snapshot once it has waited for Kafka for longer than ``_LONGEST_WAIT`` and than Postgres took to
    begin: a snapshot keeps the server from vacuuming.
    """

    def __init__(self, server: Server, plan: TablePlan, offset: SourceOffset) -> None:
        super().__init__(server, plan, offset)
        self._stored = offset
        self.offset = self._for_session(offset)
        self._not_durable_yet = _not_durable(self.offset)
        self._rows = PollRows(server, plan, self._render)
        self._offset_builder = OffsetBuilder(plan)
        self._places = len(order_columns(plan))
        self._is_whole = plan.reading is Reading.WHOLE
        self._is_stamped = plan.stamped
        self._page_offset: SourceOffset | None = None  # of the page that was handed over
        self._load: tuple[int, float] | None = None  # rows and begin of the running load
        self._loaded = 0

    def acknowledge(self, batch: RecordBatch) -> None:
        self.offset = batch.offset
        if batch.persist:
            self._stored = batch.offset
            if batch.records or _reaches(batch.offset.durable, self._not_durable_yet):
                self._not_durable_yet = _not_durable(batch.offset) if batch.records else None

    def batches(
        self, page_rows: int = PAGE_ROWS, page_bytes: PageBytes | None = None, expect: Expect | None = None
    ) -> Generator[RecordBatch]:
        """Poll once: everything committed since the offset, in pages of about ``page_rows`` records.

        The last page's offset has the new seen snapshot. The transaction is closed before that page is handed over, so
        that the caller holds no snapshot while it waits for Kafka.
        """
        self._load = None
        fill = partial(PageFill, page_rows, page_bytes or PageBytes())
        ended = False
        while not ended:
            try:
                ended = yield from self._within_snapshot(fill, expect)
            except LogUnreadable as error:
                log.warning("logged deletions can't be read; swept", table=self.plan.qualified, detail=str(error))
                self._rows.reads_log = False
        self._rows.reads_log = True

    def _within_snapshot(
        self, fill: Callable[[], PageFill], expect: Expect | None
    ) -> Generator[RecordBatch, None, bool]:
        """Select, convert and cover the rows of one snapshot; return True if the poll has no more."""
        began, longest_wait, waited = time.monotonic(), 0.0, 0.0
        expected_base = self.offset.for_shape(self.plan.shape)
        is_indexed = self._where.uses_stamp_index(expected_base)
        prefetched = self._rows.readers(expected_base, fill()) if is_indexed else {}
        is_load = expected_base.seen_snapshot is None
        with poll_transaction(
            self._server,
            self._table,
            self.plan.oid,
            shape=self.plan.shape,
            indexed=is_indexed,
            streaming=is_load,
            prefetched=[*prefetched.values()],
        ) as at:
            base = self._adapted(expected_base, at, is_indexed)
            resend_reason = base.resend_reason or (
                ResendReason.PLACE if base.phase is Phase.REWINDING and base.seen_snapshot else None
            )
            self._look_ahead(base, fill, expect)
            xids: set[bytes] = set()
            visible = self._visible(at.snapshot) if self._rows.writes_records(base) else None
            with closing(
                self._rows.chunks(base, fill(), prefetched=prefetched if base == expected_base else {})
            ) as chunks:
                while True:
                    chunk = next(chunks)
                    longest_wait = longest_wait or max(_LONGEST_WAIT, time.monotonic() - began)
                    rendered = chunk.render()
                    self._loaded += chunk.rows
                    if not self._is_stamped:
                        xids.update([xid for end in chunk.ends if (xid := end[-1]) is not None and xid != b"0"])
                    if not chunk.has_more:
                        break
                    xids = recent_xids(xids, at.snapshot) if xids else xids
                    visible = visible or self._visible(at.snapshot)
                    page = self._offset_builder.cover(base, at, chunk.ends, visible, None)
                    page = replace(page, written=at.written)
                    self._page_offset = page
                    handed_over = time.monotonic()
                    offset, load = self.offset if self._is_whole else page, self._load and self._progress()
                    yield RecordBatch(
                        rendered.records, offset, True, rendered.skipped, rendered.removals, resend_reason, load
                    )
                    waited += time.monotonic() - handed_over
                    if waited > longest_wait and not self._is_whole:
                        return False
                    base = replace(page, partial_polls=base.partial_polls)
            if rendered.records or base.phase is Phase.COMPARING:
                base = replace(base, written=at.written)
            recent_ids = set[int]() if self._is_stamped else seen_xids(self._server, at.snapshot, xids)
            offset = self._offset_builder.cover(base, at, chunk.ends, visible, recent_ids)
        self._page_offset = None
        persist, load = bool(rendered.records) or self._must_store(offset), self._load and self._progress()
        yield RecordBatch(rendered.records, offset, persist, rendered.skipped, rendered.removals, resend_reason, load)
        return True

    def _look_ahead(self, base: SourceOffset, fill: Callable[[], PageFill], expect: Expect | None) -> None:
        """Count or read all rows before the first is handed over: for the progress of a load, and for ``expect``."""
        if base.seen_snapshot is None and self._load is None:
            self._load, self._loaded = (self._rows.count(base), time.monotonic()), 0
        if expect is not None:
            with closing(self._rows.chunks(replace(base, partial_polls=()), fill(), "expected ")) as chunks:
                for chunk in chunks:
                    expect(chunk.render().records)

    def _progress(self) -> Load:
        assert self._load is not None
        total, began = self._load
        return Load(rows=self._loaded, of=total, seconds=time.monotonic() - began)

    def count(self) -> int:
        base = self.offset.for_shape(self.plan.shape)
        is_indexed = self._where.uses_stamp_index(base)
        with poll_transaction(self._server, self._table, self.plan.oid, indexed=is_indexed) as at:
            base = self._adapted(base, at, is_indexed)
            counts = [statement("source/pending", rows=query) for _, query in self._rows.queries(base)]
            return sum(int(self._server.scalar(count)) for count in counts)

    def as_of_now(self) -> SourceOffset:
        """Return the offset after all rows that are visible now; rows that commit later are due.

        Raises psycopg.Error and TableReplaced.
        """
        with poll_transaction(self._server, self._table, self.plan.oid) as at:
            seen_snapshot = self._visible(at.snapshot)
            durable = seen_snapshot if at.flushed >= at.written else None
            base = replace(self.offset.completed(seen_snapshot), shape=at.shape, partitions=at.partitions, sweep=False)
            return replace(base, durable=durable, written=at.written, flushed=at.flushed)

    def _for_session(self, offset: SourceOffset) -> SourceOffset:
        """Adapt a stored offset to the server of this session."""
        identity = self._server.identity(self.plan.oid)
        if identity == offset.identity:
            return offset
        return self._without_sweep(
            offset.for_server(identity, self._server.current_snapshot(), comparable=self.plan.sweeps)
        )

    def _without_sweep(self, offset: SourceOffset) -> SourceOffset:
        """Return the offset without comparison and sweep if the topic may have more than the table's rows."""
        return offset if self.plan.sweeps else replace(offset.without_comparison(), sweep=False)

    def _adapted(self, base: SourceOffset, at: PollSnapshot, is_indexed: bool) -> SourceOffset:
        """Adapt the offset to the server and table of a poll."""
        identity = self._server.identity(self.plan.oid)
        base = base.for_server(identity, at.snapshot, at.written).for_partitions(at.partitions)
        snapshots = (base.seen_snapshot, *(page.seen_snapshot for page in base.partial_polls))
        if not is_indexed and any(_is_too_old(snapshot, at.snapshot) for snapshot in snapshots):
            base = base.restarted(ResendReason.DISTANCE)
        base = self._without_sweep(base if self._rows.reads_log else replace(base, sweep=True))
        # partial polls of another mode or another primary key are of no use
        has_places = not self._is_whole and all(len(page.place) == self._places for page in base.partial_polls)
        return replace(base, partial_polls=self._rows.needed(base.partial_polls) if has_places else ())

    def query_text(self) -> str:
        _, query = self._rows.queries(self.offset)[0]
        return query.as_string(self._server.connection)

    def is_idle(self, snapshot: Snapshot) -> bool:
        """Return True if the last poll had this snapshot, and all of it is durable."""
        seen_snapshot = self.offset.seen_snapshot
        if self._is_whole or self.offset.phase is not Phase.STEADY or seen_snapshot is None:
            return False
        if seen_snapshot.snapshot != snapshot:
            return False
        return self.offset.resend_reason is None and self.is_durable

    @property
    def is_durable(self) -> bool:
        """Return True if a crash can't take back what was sent, and the stored offset covers all of it."""
        return self._stored.is_durable and self._not_durable_yet is None

    def blocking_xid(self, snapshot: Snapshot) -> int | None:
        """Return the oldest running transaction id once too many later ones would have to be remembered."""
        seen_snapshot = self.offset.seen_snapshot
        if seen_snapshot is None or seen_snapshot.seen is None or len(seen_snapshot.seen) < _MOST_SEEN:
            return None
        return None if snapshot.xmin > seen_snapshot.snapshot.xmin else snapshot.xmin

    def removals_left(self) -> int:
        return self._count_left("source/count_removals")

    def rows_left(self) -> int:
        return self._count_left("source/pending")

    def _count_left(self, statement_name: str) -> int:
        if self._page_offset is None:
            return 0
        counts = [statement(statement_name, rows=query) for _, query in self._rows.queries(self._page_offset)]
        return sum(int(self._server.scalar(count)) for count in counts)

    def _visible(self, snapshot: Snapshot) -> SeenSnapshot:
        """Return the seen snapshot of all rows that this snapshot shows, before they were read."""
        if self.plan.stamped:
            return SeenSnapshot(snapshot)
        floor = sql.Literal(str(snapshot.xmin % (1 << 32)))
        xids = self._server.column(statement("source/row_xids", table=self._table, floor=floor))
        return SeenSnapshot(snapshot, frozenset(seen_xids(self._server, snapshot, xids)))

    def _must_store(self, offset: SourceOffset) -> bool:
        """Return True if an offset without records must be published: the first, a durable, or a much newer one."""
        stored = self._stored
        if stored.phase is not Phase.STEADY or stored.seen_snapshot is None or offset.seen_snapshot is None:
            return True
        if (offset.identity, offset.shape, offset.partitions) != (stored.identity, stored.shape, stored.partitions):
            return True
        if (offset.is_durable and not stored.is_durable) or (offset.sweep and not stored.sweep):
            return True
        if self._not_durable_yet is not None and _reaches(offset.durable, self._not_durable_yet):
            return True
        return offset.seen_snapshot.snapshot.xmax - stored.seen_snapshot.snapshot.xmax > _REFRESH_XIDS


def _not_durable(offset: SourceOffset) -> SeenSnapshot | None:
    """Return the offset's seen snapshot if its durable one is older: deletions between them can't be pruned yet."""
    return None if _reaches(offset.durable, offset.seen_snapshot) else offset.seen_snapshot


def _reaches(durable: SeenSnapshot | None, seen_snapshot: SeenSnapshot | None) -> bool:
    if durable is None or seen_snapshot is None:
        return seen_snapshot is None
    durable_part, target = durable.snapshot, seen_snapshot.snapshot
    return durable_part.xmin >= target.xmin and durable_part.xmax >= target.xmax


def _is_too_old(seen_snapshot: SeenSnapshot | None, snapshot: Snapshot) -> bool:
    """Return True if 32-bit ids can no longer be compared with those of the seen snapshot."""
    if seen_snapshot is None:
        return False
    return snapshot.xmax - seen_snapshot.snapshot.xmin > _HALF_XIDS


def open_reader(
    server: Server,
    plan: TablePlan,
    offset: SourceOffset | None,
    topic: tuple[str, str | None] | None = None,
) -> Reader:
    """Return the plan's reader, from ``offset`` or from the beginning. ``topic``: its records' topic and topic id."""
    start = offset or SourceOffset(
        identity=server.identity(plan.oid), topic=topic, sweep=plan.sweeps, initial_timestamp=plan.initial
    )
    if plan.reading is Reading.CURSOR or not plan.kind.is_table or plan.connector.suffix:
        return CursorReader(server, plan, start)
    return TableReader(server, plan, start)
