"""One table's changes since an offset, as pages of records to publish.

All decisions about what a poll must send are here: the conditions on row versions, the order of emission, and deletes
that would hit a living key. It reads Postgres and knows nothing of Kafka's client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from psycopg import sql

from .comparison import Comparison
from .conditions import Conditions
from .horizon import Horizon, Snapshot, widen
from .identity import Again
from .key_ranges import KeyRanges
from .offset import Page, SourceOffset
from .page import PAGE_ROWS, Batch, Record, RowFailed
from .place import instant_of, ordering
from .rendering import Renderer
from .server import ChunkReader, PollSnapshot, RawRow, Server, TableReplaced, statement
from .table_plan import Reading, TablePlan

__all__ = ["TableReader"]

_HALF_XIDS = (1 << 31) - (1 << 24)  # comparing 32-bit ids is safe below this distance
_REFRESH_XIDS = 1 << 20
_MOST_SEEN = 100_000


class TableReader:
    """Reads the changes of one table. Owned by one thread.

    The generator that :meth:`pages` returns holds a Postgres snapshot while it has more pages; close it to let go.
    """

    def __init__(
        self,
        server: Server,
        plan: TablePlan,
        offset: SourceOffset | None,
        topic: tuple[str, str | None] | None = None,
    ) -> None:
        self.plan = plan
        self._server = server
        self._stored = offset or SourceOffset(
            identity=server.identity(plan.oid), topic=topic, sweep=plan.sweeps, initial=plan.since
        )
        self.offset = self._here(self._stored)
        self._unsafe: deque[tuple[int, Horizon]] = deque()
        self._where = Conditions(plan)
        self._table = sql.Identifier(plan.schema, plan.name)
        self._columns = sql.SQL(", ").join(sql.Identifier("t", name) for name in plan.rows.columns)
        self._render = Renderer(server, plan)
        self._order = ordering(plan)
        self._phase = self._render.phase
        self._xid = self._phase + 1 + len(self._order)
        self._whole = plan.reading is Reading.WHOLE
        self._id_is_key = plan.incrementing in plan.rows.key_columns
        self._ahead: SourceOffset | None = None  # within a poll, what was handed over
        self.comparison: Comparison | None = None
        """While the offset says ``compare``: records that the topic has already are left out."""

    def acknowledge(self, batch: Batch) -> None:
        """Kafka has the batch: go on from its offset."""
        self.offset = batch.offset
        if batch.persist:
            self._stored = batch.offset
        if not batch.offset.compare:
            self.comparison = None

    def pages(self, page_rows: int = PAGE_ROWS) -> Generator[Batch]:
        """Poll once: everything committed since the offset, in pages of about ``page_rows`` records.

        The last page's offset has the new horizon. The transaction is closed before that page is handed over, so no
        snapshot is held while Kafka is waited for. Acknowledge each page before asking for the next.
        Raises psycopg.Error and TableReplaced.
        """
        base = self.offset.under(self.plan.shape)
        indexed = self._where.by_stamp(base)
        ahead = self._readers_of(base) if indexed else {}
        with self._server.poll(
            self._table,
            self.plan.oid,
            indexed=indexed,
            streaming=base.horizon is None,
            serializable=self.plan.serializable,
            ahead=[*ahead.values()],
            limit=page_rows,
        ) as at:
            if at.shape != self.plan.shape:
                raise TableReplaced(f"table {self.plan.qualified}: its columns or triggers have changed")
            expected, base = base, self._adapted(base, at, indexed)
            again = base.again or (Again.PLACE if base.rewind and base.horizon else None)
            if self.comparison is not None and not self._id_is_key:
                for rows in self._chunks(replace(base, pages=()), page_rows, "expected "):
                    self.comparison.expect((record[0], record[1]) for record in self._render.records(rows))
            xids: set[int] = set()
            seen_here: Horizon | None = None
            self._render.drain_skipped()
            chunks = self._chunks(base, page_rows, ahead=ahead if base == expected else {})
            rows = next(chunks)
            while len(rows) == page_rows:
                seen_here = seen_here or self._visible(at.snapshot)
                page = replace(self._page(base, seen_here, rows), written=at.written)
                xids.update(self._xids(rows))
                records = self._lacking(self._render.records(rows))
                offset = self.offset if self._whole else page
                self._ahead = page
                gone = self._render.drain_deactivated()
                yield Batch(records, offset, skipped=self._render.drain_skipped(), again=again, deactivated=gone)
                base = replace(page, pages=base.pages)
                rows = next(chunks)
            xids.update(self._xids(rows))
            records = self._lacking(self._render.records(rows))
            rests = at.written if records or base.compare else base.written
            done = replace(self._finished(base, at, xids, rows), written=rests)
        self._ahead = None
        persist = bool(records) or self._worth_storing(done)
        gone = self._render.drain_deactivated()
        yield Batch(records, done, persist, self._render.drain_skipped(), again=again, deactivated=gone)

    def count(self) -> int:
        """How many rows a poll would take now. Raises psycopg.Error and TableReplaced."""
        base = self.offset.under(self.plan.shape)
        indexed = self._where.by_stamp(base)
        with self._server.poll(self._table, self.plan.oid, indexed=indexed) as at:
            base = self._adapted(base, at, indexed)
            counts = [statement("source/pending", rows=query) for _, query in self._queries(base)]
            return sum(int(self._server.scalar(count)) for count in counts)

    def as_of_now(self) -> SourceOffset:
        """The offset as if all that is visible now had been sent: what commits later is due, whatever its timestamp.

        Raises psycopg.Error and TableReplaced.
        """
        with self._server.poll(self._table, self.plan.oid) as at:
            horizon = self._visible(at.snapshot)
            durable = horizon if at.flushed >= at.written else None
            base = replace(self.offset, shape=at.shape, partitions=at.partitions, sweep=False, again=None)
            return replace(base, horizon=horizon, durable=durable, written=at.written, flushed=at.flushed)

    def _here(self, offset: SourceOffset) -> SourceOffset:
        """A stored offset as it holds for the server of this session."""
        identity = self._server.identity(self.plan.oid)
        return offset if identity == offset.identity else self._swept(offset.on(identity, self._server.peek()))

    def _swept(self, offset: SourceOffset) -> SourceOffset:
        """Without what a topic that has more than the table's rows does not allow."""
        return offset if self.plan.sweeps else replace(offset, sweep=False, compare=False)

    def _adapted(self, base: SourceOffset, at: PollSnapshot, indexed: bool) -> SourceOffset:
        """The offset as it holds for the server and table that a poll finds."""
        base = base.on(self._server.identity(self.plan.oid), at.snapshot, at.written).within(at.partitions)
        if not indexed and _too_old(base.horizon, at.snapshot):
            base = base.afresh(Again.DISTANCE)
        base = self._swept(base)
        # pages of another mode, or of a primary key that is another one now, say nothing
        fitting = not self._whole and all(len(page.after) == 1 + len(self._order) for page in base.pages)
        return base if fitting else replace(base, pages=())

    def query_text(self) -> str:
        """The query of a poll, for people."""
        _, query = next(self._queries(self.offset))
        return query.as_string(self._server.connection)

    def is_idle(self, snapshot: Snapshot) -> bool:
        """Whether a poll at this snapshot could bring nothing: it was polled already, and all of it is durable."""
        horizon = self.offset.horizon
        if self._whole or horizon is None or horizon.snapshot != snapshot or self.offset.rewind is not None:
            return False
        return self.offset.again is None and self._stored.settled

    @property
    def settled(self) -> bool:
        """Whether a crash of the server can't take back what was sent."""
        return self._stored.settled

    def waits_for(self, snapshot: Snapshot) -> int | None:
        """The transaction at the floor of the seen row versions, once they are too many to remember."""
        horizon = self.offset.horizon
        if horizon is None or horizon.seen is None or len(horizon.seen) < _MOST_SEEN:
            return None
        return None if snapshot.xmin > horizon.snapshot.xmin else snapshot.xmin

    def living_rows(self) -> Iterator[list[RawRow]]:
        """Every row whose key belongs in the topic, in one snapshot, in chunks, with the key's columns alone."""
        columns, present = self._render.key_columns, self._where.present()
        query = statement("source/keys", columns=columns, table=self._table, present=present)
        with self._server.poll(self._table, self.plan.oid):
            reader = ChunkReader(self._server.connection, "keys", query)
            while rows := reader.fetch(PAGE_ROWS):
                yield rows

    def key_ranges(self) -> KeyRanges | None:
        """The same by ranges of the primary key, each in a snapshot of its own; None where there is none."""
        return KeyRanges(self._server, self.plan) if self.plan.ties else None

    def survivors(self, limit: int) -> int:
        """How many rows live now, counted up to ``limit``; within a poll, in its snapshot."""
        parts = {"relation": self._table, "alive": self._where.alive(), "limit": sql.Literal(limit)}
        return int(self._server.scalar(statement("source/survivors", **parts)))

    def removals_left(self) -> int:
        """How many deactivated and deleted rows come behind the page that was handed over last."""
        if self._ahead is None:
            return 0
        counts = [statement("source/removals", rows=query) for _, query in self._queries(self._ahead)]
        return sum(int(self._server.scalar(count)) for count in counts)

    def _readers_of(self, base: SourceOffset) -> dict[str, ChunkReader]:
        """What reads the changes since ``base``, to be opened before it is known whether that is what a poll takes."""
        connection = self._server.connection
        return {name: ChunkReader(connection, f"ahead {name}", query) for name, query in self._queries(base)}

    def _chunks(
        self, base: SourceOffset, size: int, purpose: str = "", ahead: Mapping[str, ChunkReader] = MappingProxyType({})
    ) -> Iterator[list[RawRow]]:
        """Chunks of exactly ``size`` rows, then a smaller one, possibly empty; ``ahead`` are open already."""
        left: list[RawRow] = []
        for name, query in self._queries(base):
            reader = ahead.get(name) or ChunkReader(self._server.connection, f"{purpose}{name}", query)
            while True:
                rows = reader.fetch(size - len(left))
                complete = len(rows) < size - len(left)
                left.extend(rows)
                if complete:
                    break
                yield left
                left = []
        yield left

    def _queries(self, base: SourceOffset) -> Iterator[tuple[str, sql.Composed]]:
        yield (
            "rows",
            statement(
                "source/rows",
                phase=self._where.phase(),
                places=sql.SQL(", ").join(sql.SQL("({})::text").format(part) for part in self._order),
                order=sql.SQL(", ").join(self._order),
                columns=self._columns,
                table=self._table,
                unseen=self._where.unseen_rows(base),
            ),
        )
        if self.plan.adopted and base.horizon is not None:
            yield (
                "deletions",
                statement(
                    "source/deleted",
                    columns=self._columns,
                    nulls=sql.SQL("").join([sql.SQL("NULL, ")] * (len(self._order) - 1)),
                    table=self._table,
                    oid=sql.Literal(self.plan.oid),
                    unseen=self._where.unseen_deletions(base),
                ),
            )

    def _visible(self, snapshot: Snapshot) -> Horizon:
        """The horizon of everything that this snapshot shows, before all of it has been read."""
        if self.plan.adopted:
            return Horizon(snapshot)
        floor = sql.Literal(str(snapshot.xmin % (1 << 32)))
        visible = self._server.column(statement("source/row_xids", table=self._table, floor=floor))
        return Horizon.above(snapshot, (widen(int(xid), snapshot.xmax) for xid in visible))

    def _page(self, base: SourceOffset, visible: Horizon, rows: Sequence[RawRow]) -> SourceOffset:
        """The offset after a page that is not the poll's last."""
        phase, *places = rows[-1][self._phase : self._xid]
        after: tuple[int, *tuple[str | None, ...]] = (int(phase or 0), *(_optional(part) for part in places))
        return replace(self._progress(base, rows), pages=(*base.pages, Page(visible, after)))

    def _finished(
        self, base: SourceOffset, at: PollSnapshot, xids: Iterable[int], rows: Sequence[RawRow]
    ) -> SourceOffset:
        """The offset after the poll's last page."""
        if self.plan.adopted:
            horizon = Horizon(at.snapshot)
        else:
            known = [group.seen or () for group in (base.horizon, *(page.horizon for page in base.pages)) if group]
            polled = (widen(xid, at.snapshot.xmax) for xid in xids)
            horizon = Horizon.above(at.snapshot, polled, *known)
        return replace(
            self._progress(base, rows),
            horizon=horizon,
            durable=self._durable(base.durable, horizon, at),
            flushed=max(base.flushed, at.flushed),
            pages=(),
            fresh=(),
            rewind=None,
            compare=False,
            again=None,
        )

    def _durable(self, known: Horizon | None, horizon: Horizon, at: PollSnapshot) -> Horizon | None:
        """The newest horizon whose WAL has been flushed.

        Of those still waiting only the oldest and the newest are kept: the oldest is soon safe, even while writers
        keep the flush position behind.
        """
        if len(self._unsafe) == 2:
            self._unsafe.pop()
        self._unsafe.append((at.written, horizon))
        while self._unsafe and self._unsafe[0][0] <= at.flushed:
            known = self._unsafe.popleft()[1]
        return known

    def _progress(self, base: SourceOffset, rows: Sequence[RawRow]) -> SourceOffset:
        """The offset with the highest timestamp and id that were sent, as the real connector would have them."""
        first = self._phase + 1
        living = [row[first : self._xid] for row in rows if row[self._phase] != b"2" and row[first] is not None]
        if not living or not (self.plan.timestamps or self.plan.incrementing):
            return base
        number = self._number if self.plan.incrementing else lambda _: 0
        if not self.plan.timestamps:
            return replace(base, incrementing=max(base.incrementing or 0, *(number(row[0]) for row in living)))
        text, highest = max((_text(row[0]), number(row[1]) if len(row) > 1 else 0) for row in living)
        milliseconds, nanos = instant_of(text, self.plan.zone)
        known = (base.timestamp, base.timestamp_nanos, base.incrementing or 0)
        if None not in known and (milliseconds, nanos, highest) <= known:
            return base
        incrementing = highest if self.plan.incrementing else None
        return replace(base, timestamp=milliseconds, timestamp_nanos=nanos, incrementing=incrementing)

    def _number(self, raw: bytes | None) -> int:
        try:
            return int(raw or 0)
        except ValueError:  # numeric with a fraction
            column = self.plan.incrementing
            raise RowFailed(f"column {column}: not a whole number, which the incrementing column must be") from None

    def _xids(self, rows: Iterable[RawRow]) -> Iterator[int]:
        return (int(xid) for xid in {row[self._xid] for row in rows} if xid is not None and xid != b"0")

    def _worth_storing(self, done: SourceOffset) -> bool:
        """Whether an offset without records should be written: first poll, durable at last, or long ago."""
        stored = self._stored
        if stored.horizon is None or done.horizon is None or stored.rewind is not None:
            return True
        if (done.identity, done.shape, done.partitions) != (stored.identity, stored.shape, stored.partitions):
            return True
        if done.settled and not stored.settled:
            return True
        return done.horizon.snapshot.xmax - stored.horizon.snapshot.xmax > _REFRESH_XIDS

    def _lacking(self, records: list[Record]) -> list[Record]:
        if self.comparison is None or self.plan.rows.routed:
            return records
        return [*self.comparison.lacking((record[0], record[1]) for record in records)]


def _optional(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


def _text(raw: bytes | None) -> str:
    return raw.decode() if raw is not None else ""


def _too_old(horizon: Horizon | None, snapshot: Snapshot) -> bool:
    """Whether 32-bit ids can no longer be compared with the horizon's."""
    if horizon is None:
        return False
    return snapshot.xmax - horizon.snapshot.xmin > _HALF_XIDS
