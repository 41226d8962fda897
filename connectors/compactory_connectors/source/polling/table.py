"""One table's changes since an offset, as pages of records to publish.

`conditions` says which row versions a poll selects, `poll_rows` reads them in the order of emission, and `rendering`
makes records of them. It reads Postgres and knows nothing of Kafka's client.
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
from .load_progress import Load
from .offset_builder import OffsetBuilder
from .poll_rows import PollRows
from .reader import Expect, Reader
from .record_batch import RecordBatch

__all__ = ["TableReader"]

log = structlog.get_logger("compactory.source")

_HALF_XIDS = (1 << 31) - (1 << 24)  # comparing 32-bit ids is safe below this distance
_REFRESH_XIDS = 1 << 20
_MOST_SEEN = 100_000
_PATIENCE = 5.0  # seconds


class TableReader(Reader):
    """Reads the changes of one table. Owned by one thread.

    The generator that :meth:`batches` returns holds a Postgres snapshot while it has more pages; close it to let go.
    It lets go by itself when it has waited for Kafka for longer than ``_PATIENCE``, or than Postgres took to begin
    where that is more, and goes on in another one: a snapshot keeps the server from tidying up.
    """

    def __init__(self, server: Server, plan: TablePlan, offset: SourceOffset) -> None:
        super().__init__(server, plan, offset)
        self._stored = offset
        self.offset = self._here(offset)
        self._unsettled = _not_durable(self.offset)
        self._rows = PollRows(server, plan, self._render)
        self._offset_builder = OffsetBuilder(plan)
        self._places = len(order_columns(plan))
        self._whole = plan.reading is Reading.WHOLE
        self._stamped = plan.stamped
        self._ahead: SourceOffset | None = None  # within a poll, what was handed over
        self._load: tuple[int, float] | None = None  # rows of the load that goes on, and when it began
        self._loaded = 0

    def acknowledge(self, batch: RecordBatch) -> None:
        """Kafka has the batch: go on from its offset."""
        self.offset = batch.offset
        if batch.persist:
            self._stored = batch.offset
            if batch.records or _reaches(batch.offset.durable, self._unsettled):
                self._unsettled = _not_durable(batch.offset) if batch.records else None

    def batches(
        self, page_rows: int = PAGE_ROWS, page_bytes: PageBytes | None = None, expect: Expect | None = None
    ) -> Generator[RecordBatch]:
        """Poll once: everything committed since the offset, in pages of about ``page_rows`` records.

        The last page's offset has the new seen snapshot. The transaction is closed before that page is handed over, so
        no snapshot is held while Kafka is waited for.
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
        """Select, convert and cover the rows that one snapshot shows; whether those are all that the poll has."""
        began, patience, waited = time.monotonic(), 0.0, 0.0
        supposed = self.offset.for_shape(self.plan.shape)
        indexed = self._where.by_stamp(supposed)
        ahead = self._rows.readers(supposed, fill()) if indexed else {}
        streaming = supposed.seen_snapshot is None
        with self._snapshot(indexed=indexed, streaming=streaming, prefetched=[*ahead.values()]) as at:
            base = self._adapted(supposed, at, indexed)
            resend_reason = base.resend_reason or (
                ResendReason.PLACE if base.phase is Phase.REWINDING and base.seen_snapshot else None
            )
            self._look_ahead(base, fill, expect)
            xids: set[bytes] = set()
            seen_here = self._visible(at.snapshot) if self._rows.formats(base) else None
            with closing(self._rows.chunks(base, fill(), ahead=ahead if base == supposed else {})) as chunks:
                while True:
                    chunk = next(chunks)  # the last one says that it is
                    patience = patience or max(_PATIENCE, time.monotonic() - began)
                    found = chunk.render()
                    self._loaded += chunk.rows
                    if not self._stamped:
                        xids.update([xid for end in chunk.ends if (xid := end[-1]) is not None and xid != b"0"])
                    if not chunk.more:
                        break
                    xids = recent_xids(xids, at.snapshot) if xids else xids
                    seen_here = seen_here or self._visible(at.snapshot)
                    page = self._offset_builder.cover(base, at, chunk.ends, seen_here, None)
                    page = replace(page, written=at.written)
                    self._ahead = page
                    handed_over = time.monotonic()
                    offset, load = self.offset if self._whole else page, self._load and self._progress()
                    yield RecordBatch(found.records, offset, True, found.skipped, found.removals, resend_reason, load)
                    waited += time.monotonic() - handed_over
                    if waited > patience and not self._whole:
                        return False
                    base = replace(page, partial_polls=base.partial_polls)
            if found.records or base.phase is Phase.COMPARING:
                base = replace(base, written=at.written)
            recent_ids = set[int]() if self._stamped else seen_xids(self._server, at.snapshot, xids)
            done = self._offset_builder.cover(base, at, chunk.ends, seen_here, recent_ids)
        self._ahead = None
        persist, load = bool(found.records) or self._worth_storing(done), self._load and self._progress()
        yield RecordBatch(found.records, done, persist, found.skipped, found.removals, resend_reason, load)
        return True

    def _look_ahead(self, base: SourceOffset, fill: Callable[[], PageFill], expect: Expect | None) -> None:
        """Look at all rows before the first is handed over: for the progress of a load, and for a comparison."""
        if base.seen_snapshot is None and self._load is None:
            self._load, self._loaded = (self._rows.expected(base), time.monotonic()), 0
        if expect is not None:
            with closing(self._rows.chunks(replace(base, partial_polls=()), fill(), "expected ")) as chunks:
                for chunk in chunks:
                    expect(chunk.render().records)

    def _progress(self) -> Load:
        """How far the load is."""
        assert self._load is not None
        of, began = self._load
        return Load(rows=self._loaded, of=of, seconds=time.monotonic() - began)

    def count(self) -> int:
        """As :meth:`Reader.count`."""
        base = self.offset.for_shape(self.plan.shape)
        indexed = self._where.by_stamp(base)
        with poll_transaction(self._server, self._table, self.plan.oid, indexed=indexed) as at:
            base = self._adapted(base, at, indexed)
            counts = [statement("source/pending", rows=query) for _, query in self._rows.queries(base)]
            return sum(int(self._server.scalar(count)) for count in counts)

    def as_of_now(self) -> SourceOffset:
        """The offset as if all that is visible now had been sent: what commits later is due, whatever its timestamp.

        Raises psycopg.Error and TableReplaced.
        """
        with poll_transaction(self._server, self._table, self.plan.oid) as at:
            seen_snapshot = self._visible(at.snapshot)
            durable = seen_snapshot if at.flushed >= at.written else None
            base = replace(self.offset.completed(seen_snapshot), shape=at.shape, partitions=at.partitions, sweep=False)
            return replace(base, durable=durable, written=at.written, flushed=at.flushed)

    def _here(self, offset: SourceOffset) -> SourceOffset:
        """A stored offset as it holds for the server of this session."""
        identity = self._server.identity(self.plan.oid)
        if identity == offset.identity:
            return offset
        return self._swept(offset.for_server(identity, self._server.current_snapshot(), comparable=self.plan.sweeps))

    def _swept(self, offset: SourceOffset) -> SourceOffset:
        """Without what a topic that has more than the table's rows does not allow."""
        return offset if self.plan.sweeps else replace(offset.without_comparison(), sweep=False)

    def _adapted(self, base: SourceOffset, at: PollSnapshot, indexed: bool) -> SourceOffset:
        """The offset as it holds for the server and table that a poll finds."""
        identity = self._server.identity(self.plan.oid)
        base = base.for_server(identity, at.snapshot, at.written).for_partitions(at.partitions)
        known = (base.seen_snapshot, *(page.seen_snapshot for page in base.partial_polls))
        if not indexed and any(_too_old(horizon, at.snapshot) for horizon in known):
            base = base.restarted(ResendReason.DISTANCE)
        base = self._swept(base if self._rows.reads_log else replace(base, sweep=True))
        # partial polls of another mode, or of a primary key that is another one now, say nothing
        fitting = not self._whole and all(len(page.place) == 1 + self._places for page in base.partial_polls)
        return replace(base, partial_polls=self._rows.needed(base.partial_polls) if fitting else ())

    def query_text(self) -> str:
        """As :meth:`Reader.query_text`."""
        _, query = self._rows.queries(self.offset)[0]
        return query.as_string(self._server.connection)

    def is_idle(self, snapshot: Snapshot) -> bool:
        """Whether a poll at this snapshot could bring nothing: it was polled already, and all of it is durable."""
        seen_snapshot = self.offset.seen_snapshot
        if self._whole or self.offset.phase is not Phase.STEADY or seen_snapshot is None:
            return False
        if seen_snapshot.snapshot != snapshot:
            return False
        return self.offset.resend_reason is None and self.settled

    @property
    def settled(self) -> bool:
        """Whether a crash of the server can't take back what was sent, and the stored offset says so of all of it."""
        return self._stored.is_durable and self._unsettled is None

    def waits_for(self, snapshot: Snapshot) -> int | None:
        """The transaction at the floor of the seen row versions, once they are too many to remember."""
        seen_snapshot = self.offset.seen_snapshot
        if seen_snapshot is None or seen_snapshot.seen is None or len(seen_snapshot.seen) < _MOST_SEEN:
            return None
        return None if snapshot.xmin > seen_snapshot.snapshot.xmin else snapshot.xmin

    def removals_left(self) -> int:
        """How many deactivated and deleted rows come behind the page that was handed over last."""
        return self._count_left("source/count_removals")

    def rows_left(self) -> int:
        """As :meth:`Reader.rows_left`."""
        return self._count_left("source/pending")

    def _count_left(self, counting: str) -> int:
        if self._ahead is None:
            return 0
        counts = [statement(counting, rows=query) for _, query in self._rows.queries(self._ahead)]
        return sum(int(self._server.scalar(count)) for count in counts)

    def _visible(self, snapshot: Snapshot) -> SeenSnapshot:
        """The seen snapshot of everything that this snapshot shows, before all of it has been read."""
        if self.plan.stamped:
            return SeenSnapshot(snapshot)
        floor = sql.Literal(str(snapshot.xmin % (1 << 32)))
        visible = self._server.column(statement("source/row_xids", table=self._table, floor=floor))
        return SeenSnapshot(snapshot, frozenset(seen_xids(self._server, snapshot, visible)))

    def _worth_storing(self, done: SourceOffset) -> bool:
        """Whether an offset without records should be written: first poll, durable at last, or long ago."""
        stored = self._stored
        if stored.phase is not Phase.STEADY or stored.seen_snapshot is None or done.seen_snapshot is None:
            return True
        if (done.identity, done.shape, done.partitions) != (stored.identity, stored.shape, stored.partitions):
            return True
        if (done.is_durable and not stored.is_durable) or (done.sweep and not stored.sweep):
            return True
        if self._unsettled is not None and _reaches(done.durable, self._unsettled):
            return True
        return done.seen_snapshot.snapshot.xmax - stored.seen_snapshot.snapshot.xmax > _REFRESH_XIDS


def _not_durable(offset: SourceOffset) -> SeenSnapshot | None:
    """The offset's snapshot, where its durable one is older: deletions between them can't be pruned yet."""
    return None if _reaches(offset.durable, offset.seen_snapshot) else offset.seen_snapshot


def _reaches(durable: SeenSnapshot | None, seen_snapshot: SeenSnapshot | None) -> bool:
    if durable is None or seen_snapshot is None:
        return seen_snapshot is None
    seen, wanted = durable.snapshot, seen_snapshot.snapshot
    return seen.xmin >= wanted.xmin and seen.xmax >= wanted.xmax


def _too_old(seen_snapshot: SeenSnapshot | None, snapshot: Snapshot) -> bool:
    """Whether 32-bit ids can no longer be compared with the horizon's."""
    if seen_snapshot is None:
        return False
    return snapshot.xmax - seen_snapshot.snapshot.xmin > _HALF_XIDS
