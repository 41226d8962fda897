"""New rows of one table, each once: mode ``incrementing``. Rows that changed are not sent again.

The offset holds the ranges of ids that were sent, so a row that commits late under a lower id is found; see
``id_ranges``. It reads Postgres and knows nothing of Kafka's client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace

from psycopg import sql

from compactory_connectors.database.snapshot import Snapshot

from ..cursor.id_ranges import MOST_GAPS, IdRanges, Span
from ..cursor.offset import SourceOffset
from ..cursor.phase import Phase
from ..plan.table_plan import TablePlan
from ..postgres.page_size import PAGE_ROWS, PageBytes, PageFill
from ..postgres.server import ChunkReader, PollSnapshot, RawRow, Server, statement
from .offset_builder import not_whole
from .reader import Expect, Reader
from .record_batch import RecordBatch

__all__ = ["NewRowsReader"]

_FEW_GAPS = 64
"""Up to so many gaps are written out as conditions, which indexes serve."""

_MOST_PENDING = MOST_GAPS // 2


class NewRowsReader(Reader):
    """Reads the new rows of one table. Owned by one thread."""

    def __init__(self, server: Server, plan: TablePlan, offset: SourceOffset) -> None:
        assert plan.incrementing is not None
        super().__init__(server, plan, offset)
        self._id = sql.Identifier("t", plan.incrementing)
        self._polled: Snapshot | None = None
        self._unsafe: deque[tuple[int, tuple[Span, ...]]] = deque()
        """Ids by the WAL position up to which they must be flushed; of one poll each."""

    def batches(
        self, page_rows: int = PAGE_ROWS, page_bytes: PageBytes | None = None, expect: Expect | None = None
    ) -> Generator[RecordBatch]:
        """Poll once: every row whose id was not sent, by id; nothing is expected, for each row is sent by itself."""
        del expect
        with self._snapshot(streaming=self.offset.ids is None) as at:
            base = self._adapted(at)
            reader = ChunkReader(self._server.connection, "rows", self._query(base), PageFill(page_rows, page_bytes))
            rows = reader.page()
            while not reader.ended:
                base = self._after(base, rows, at)
                found = self._render.render(rows)
                yield RecordBatch(found.records, base, skipped=found.skipped)
                rows = reader.page()
            found = self._render.render(rows)
            done = self._finished(base, rows, at).polled(base.seen_snapshot)
        self._polled = at.snapshot
        persist = bool(rows) or self._worth_storing(done)
        yield RecordBatch(found.records, done, persist, found.skipped)

    def is_idle(self, snapshot: Snapshot) -> bool:
        """Whether nothing was committed since the last poll, and a crash can't take back what was sent."""
        return self._polled == snapshot and self.offset.ids is not None and not self.offset.ids.unflushed

    @property
    def settled(self) -> bool:
        """Whether a crash of the server can't take back what was sent."""
        return self.offset.ids is not None and not self.offset.ids.unflushed

    def waits_for(self, snapshot: Snapshot) -> int | None:
        """The oldest open transaction, once there are too many gaps that it, or one after it, may fill."""
        ids = self.offset.ids
        if ids is None or not ids.marks or ids.settled(snapshot.xmin)[1] is not None:
            return None
        return snapshot.xmin if ids.pending() > _MOST_PENDING else None

    def count(self) -> int:
        """As :meth:`Reader.count`."""
        with self._server.poll(self._table, self.plan.oid) as at:
            return int(self._server.scalar(statement("source/pending", rows=self._query(self._adapted(at)))))

    def query_text(self) -> str:
        """As :meth:`Reader.query_text`."""
        return self._query(self.offset).as_string(self._server.connection)

    def unsent(self, at: PollSnapshot) -> sql.Composable:
        """The condition on rows ``t`` that a poll at this snapshot would take."""
        ids = self._adapted(at).ids
        return self._unsent(ids) if ids is not None else sql.SQL("true")

    def _adapted(self, at: PollSnapshot) -> SourceOffset:
        """The offset as it holds for the server and table that a poll finds.

        A restarted server may have lost what was not flushed, and gives those ids out again. Another history: nothing
        is trusted, every row is sent again.
        """
        offset, identity = self.offset, self._server.identity(self.plan.oid)
        ids = offset.ids
        if ids is not None and offset.identity.table_oid and not identity.same_memory(offset.identity):
            ids = ids.after_crash() if identity.same_history(offset.identity) else None
        if ids is not None and any(xmax > at.snapshot.xmax for _, xmax in ids.marks):
            ids = None
        if ids is None and offset.ids is not None:
            offset = replace(offset, incrementing=None)
        if ids is None and offset.incrementing is not None and offset.phase is not Phase.COMPARING:
            ids = IdRanges.up_to(offset.incrementing)  # an offset of Kafka Connect, or one that was set by hand
        return replace(offset, identity=identity.following(offset.identity), shape=self.plan.shape, ids=ids)

    def _query(self, base: SourceOffset) -> sql.Composed:
        return statement(
            "source/new_rows",
            columns=self._columns,
            table=self._table,
            id=self._id,
            unsent=self._unsent(base.ids) if base.ids is not None else sql.SQL("true"),
        )

    def _unsent(self, ids: IdRanges) -> sql.Composable:
        """Rows in the gaps between the ranges. Of many gaps a binary search among the ranges finds the row's place."""
        gaps = ids.gaps()
        if len(gaps) <= _FEW_GAPS:
            return sql.SQL("({})").format(sql.SQL(" OR ").join(self._within(low, high) for low, high in gaps))
        lows, highs = ([span[end] for span in ids.spans] for end in (0, 1))
        return sql.SQL(
            "({above} AND coalesce({id} > ({highs}::int8[])[width_bucket({id}::int8, {lows}::int8[])], true))"
        ).format(above=self._within(ids.floor, None), id=self._id, highs=sql.Literal(highs), lows=sql.Literal(lows))

    def _within(self, low: int | None, high: int | None) -> sql.Composable:
        conditions = [sql.SQL("{} > {}").format(self._id, sql.Literal(low))] if low is not None else []
        conditions += [sql.SQL("{} < {}").format(self._id, sql.Literal(high))] if high is not None else []
        return sql.SQL("({})").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL("true")

    def _after(self, base: SourceOffset, rows: Sequence[RawRow], at: PollSnapshot) -> SourceOffset:
        """The offset with these rows sent."""
        try:
            numbers = [int(row[self._render.phase + 1] or 0) for row in rows]
        except ValueError:
            raise not_whole(self.plan) from None
        ids = (base.ids or IdRanges()).adding(numbers)
        settled = ids.settled(at.snapshot.xmin)[1]
        highest = max([number for number in (base.incrementing, *numbers) if number is not None], default=None)
        return replace(base, ids=ids.trimmed(settled), incrementing=highest)

    def _finished(self, base: SourceOffset, rows: Sequence[RawRow], at: PollSnapshot) -> SourceOffset:
        """The offset after the poll's last page: a mark is set, and what a crash can't take back any more is known."""
        done = self._after(base, rows, at)
        assert done.ids is not None
        ids = fresh = done.ids
        for _, spans in self._unsafe:  # spans that wait already wait for less
            fresh = fresh.flushed(spans)
        if fresh.unflushed:
            self._unsafe.append((at.written, fresh.unflushed))
        while self._unsafe and self._unsafe[0][0] <= at.flushed:
            ids = ids.flushed(self._unsafe.popleft()[1])
        ids, settled = ids.settled(at.snapshot.xmin)
        return replace(done, ids=ids.marked(at.snapshot.xmax).trimmed(settled))

    def _worth_storing(self, done: SourceOffset) -> bool:
        """Whether an offset without records should be written: a first poll, or something is safe at last."""
        stored = self.offset
        if (
            stored.phase is not Phase.STEADY
            or stored.ids is None
            or done.ids is None
            or done.identity != stored.identity
        ):
            return True
        return bool(stored.ids.unflushed) and not done.ids.unflushed
