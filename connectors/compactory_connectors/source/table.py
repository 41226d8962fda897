"""One table's changes since an offset, as pages of records to publish.

All decisions about what a poll must send are here: the conditions on row versions, the order of emission, and deletes
that would hit a living key. It reads Postgres and knows nothing of Kafka's client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import LiteralString, cast

from psycopg import sql

from .comparison import Comparison
from .conditions import Conditions
from .horizon import Horizon, Snapshot, widen
from .offset import Page, SourceOffset
from .record import RowError
from .server import ChunkReader, PollSnapshot, RawRow, Server, TableReplaced, statement
from .table_plan import TablePlan

__all__ = ["PAGE_ROWS", "Batch", "Record", "TableReader"]

PAGE_ROWS = 10_000
"""Rows of one Kafka transaction; an abandoned one blocks readers, so it stays short."""

_PHASE, _STAMP, _ID, _XID = -4, -3, -2, -1  # what a row has behind the plan's columns
_HALF_XIDS = (1 << 31) - (1 << 24)  # comparing 32-bit ids is safe below this distance
_REFRESH_XIDS = 1 << 20

Record = tuple[bytes | None, bytes | None]
"""Key and value; the value None is a tombstone."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records and the offset that covers them; ``persist`` False: nothing to send, only remember the offset."""

    records: list[Record]
    offset: SourceOffset
    persist: bool = True


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
        self.offset = offset or SourceOffset(identity=server.identity(plan.oid), topic=topic, sweep=True)
        self._server = server
        self._unsafe: deque[tuple[int, Horizon]] = deque()
        self._sent: Horizon | None = self.offset.horizon
        self._stored = self.offset
        self._where = Conditions(plan)
        self._table = sql.Identifier(plan.schema, plan.name)
        self._columns = sql.SQL(", ").join(sql.Identifier("t", name) for name in plan.rows.columns)
        keys = plan.rows.key_columns
        self._keys = sql.SQL(", ").join(
            sql.Identifier("t", name) if name in keys else sql.SQL("NULL") for name in plan.rows.columns
        )
        self._key_positions = [plan.rows.columns.index(name) for name in plan.rows.key_columns]
        self._id_is_key = plan.incrementing in plan.rows.key_columns
        self.comparison: Comparison | None = None
        """While the offset says ``compare``: records that the topic has already are left out."""

    def acknowledge(self, batch: Batch) -> None:
        """Kafka has the batch: go on from its offset."""
        self.offset = batch.offset
        if batch.persist:
            self._stored = batch.offset
        if batch.records or self._sent is None:
            self._sent = batch.offset.horizon
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
        with self._server.poll(self._table, self.plan.oid, indexed=indexed, streaming=base.horizon is None) as at:
            if at.shape != self.plan.shape:
                raise TableReplaced(f"table {self.plan.qualified}: its columns or triggers have changed")
            base = self._adapted(base, at, indexed)
            if self.comparison is not None and not self._id_is_key:
                for rows in self._chunks(replace(base, pages=()), page_rows, "expected "):
                    self.comparison.expect(self._records(rows))
            xids: set[int] = set()
            seen_here: Horizon | None = None
            chunks = self._chunks(base, page_rows)
            rows = next(chunks)
            while len(rows) == page_rows:
                seen_here = seen_here or self._visible(at.snapshot)
                page = self._page(base, seen_here, rows)
                xids.update(_xids(rows))
                yield Batch(self._lacking(self._records(rows)), page)
                base = replace(page, pages=base.pages)
                rows = next(chunks)
            xids.update(_xids(rows))
            records = self._lacking(self._records(rows))
            done = self._finished(base, at, xids, rows)
        yield Batch(records, done, bool(records) or self._worth_storing(done))

    def count(self) -> int:
        """How many rows a poll would take now. Raises psycopg.Error and TableReplaced."""
        base = self.offset.under(self.plan.shape)
        indexed = self._where.by_stamp(base)
        with self._server.poll(self._table, self.plan.oid, indexed=indexed) as at:
            base = self._adapted(base, at, indexed)
            counts = [statement("source/pending", rows=query) for _, query in self._queries(base)]
            return sum(int(self._server.scalar(count)) for count in counts)

    def _adapted(self, base: SourceOffset, at: PollSnapshot, indexed: bool) -> SourceOffset:
        """The offset as it holds for the server and table that a poll finds."""
        base = base.on(self._server.identity(self.plan.oid), at.snapshot).within(at.partitions)
        return base.afresh() if not indexed and _too_old(base.horizon, at.snapshot) else base

    def query_text(self) -> str:
        """The query of a poll, for people."""
        _, query = next(self._queries(self.offset))
        return query.as_string(self._server.connection)

    def is_idle(self, snapshot: Snapshot) -> bool:
        """Whether a poll at this snapshot could bring nothing: it was polled already, and all of it is durable."""
        horizon = self.offset.horizon
        if horizon is None or horizon.snapshot != snapshot or self.offset.rewind is not None:
            return False
        return self._sent is None or not _behind(self._stored.durable, self._sent)

    def living_rows(self) -> Iterator[list[RawRow]]:
        """Every row whose key belongs in the topic, in one snapshot, in chunks, with the key's columns alone."""
        query = statement("source/keys", columns=self._keys, table=self._table, present=self._where.present())
        with self._server.poll(self._table, self.plan.oid):
            reader = ChunkReader(self._server.connection, "keys", query)
            while rows := reader.fetch(PAGE_ROWS):
                yield rows

    def _chunks(self, base: SourceOffset, size: int, purpose: str = "") -> Iterator[list[RawRow]]:
        """Chunks of exactly ``size`` rows, then a smaller one, possibly empty."""
        left: list[RawRow] = []
        for name, query in self._queries(base):
            reader = ChunkReader(self._server.connection, f"{purpose}{name}", query)
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
                timestamp=sql.Identifier("t", self.plan.timestamp),
                incrementing=sql.Identifier("t", self.plan.incrementing),
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
        phase, timestamp, number = rows[-1][_PHASE:_XID]
        after = (int(phase or 0), _optional(timestamp), _optional(number))
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
        durable = self._durable(base.durable, horizon, at)
        return replace(
            self._progress(base, rows), horizon=horizon, durable=durable, pages=(), fresh=(), rewind=None, compare=False
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
        stamps = [
            (_text(row[_STAMP]), self._number(row)) for row in rows if row[_STAMP] is not None and row[_PHASE] != b"2"
        ]
        if not stamps:
            return base
        text, number = max(stamps)
        milliseconds, nanos = _epoch(text)
        known = (base.timestamp, base.timestamp_nanos, base.incrementing)
        if None not in known and (milliseconds, nanos, number) <= known:
            return base
        return replace(base, timestamp=milliseconds, timestamp_nanos=nanos, incrementing=number)

    def _number(self, row: RawRow) -> int:
        try:
            return int(row[_ID] or 0)
        except ValueError:  # numeric with a fraction
            column = self.plan.incrementing
            raise RowError(f"column {column}: not a whole number, which the incrementing column must be") from None

    def _worth_storing(self, done: SourceOffset) -> bool:
        """Whether an offset without records should be written: first poll, durable at last, or long ago."""
        stored = self._stored
        if stored.horizon is None or done.horizon is None or stored.rewind is not None:
            return True
        if (done.identity, done.shape, done.partitions) != (stored.identity, stored.shape, stored.partitions):
            return True
        if (
            self._sent
            and done.durable
            and _behind(stored.durable, self._sent)
            and not _behind(done.durable, self._sent)
        ):
            return True
        return done.horizon.snapshot.xmax - stored.horizon.snapshot.xmax > _REFRESH_XIDS

    def _lacking(self, records: list[Record]) -> list[Record]:
        return records if self.comparison is None else self.comparison.lacking(records)

    def _records(self, rows: Sequence[RawRow]) -> list[Record]:
        living = self._living(rows)
        render, render_key = self.plan.rows.render, self.plan.rows.render_key
        records: list[Record] = []
        for row in rows:
            phase = row[_PHASE]
            if phase != b"0" and render_key(row) in living:
                continue
            gone = phase == b"2" or (phase == b"1" and self.plan.tombstones)
            record = (render_key(row), None) if gone else render(row)
            if record[0] is None:
                raise RowError(f"row {_text(row[_ID])}: the record's key is null, which a compacted topic refuses")
            records.append(record)
        return records

    def _key(self, row: RawRow) -> tuple[bytes | None, ...]:
        return tuple(row[position] for position in self._key_positions)

    def _living(self, rows: Sequence[RawRow]) -> set[bytes | None]:
        """Keys among the deletes of these rows that a living row has in this snapshot: an active row wins.

        What is equal for Postgres (1.0 and 1.00, citext) may be two keys in the topic, so that rendered keys decide.
        """
        keys = {self._key(row) for row in rows if row[_PHASE] == b"2" or (row[_PHASE] == b"1" and not self._id_is_key)}
        if not keys:
            return set()
        return {self.plan.rows.render_key(row) for row in self._server.rows(self._rows_under(keys))}

    def _rows_under(self, keys: Iterable[tuple[bytes | None, ...]]) -> sql.Composed:
        """The query for living rows that have one of these keys."""
        names: list[sql.Composable] = []
        arrays: list[sql.Composable] = []
        matches: list[sql.Composable] = []
        columns = zip(self.plan.rows.key_columns, self.plan.key_types, zip(*keys, strict=True), strict=True)
        for number, (column, declared, parts) in enumerate(columns):
            name = sql.Identifier(f"k{number}")
            names.append(name)
            texts = [None if part is None else part.decode() for part in parts]
            arrays.append(sql.SQL("{}::text[]").format(sql.Literal(texts)))
            matches.append(_match(column, name, declared, None in parts))
        return statement(
            "source/living",
            columns=self._keys,
            names=sql.SQL(", ").join(names),
            arrays=sql.SQL(", ").join(arrays),
            table=self._table,
            matches=sql.SQL(" AND ").join(matches),
            alive=self._where.alive(),
        )


def _match(column: str, name: sql.Identifier, declared: str, nullable: bool) -> sql.Composable:
    """A key column equal to a value; NULL, which no index condition takes, only where one is looked for."""
    parts = {"column": sql.Identifier("t", column), "value": sql.SQL("d.{}").format(name), "type": _type(declared)}
    equal = sql.SQL("{column} = {value}::{type}").format(**parts)
    if not nullable:
        return equal
    return sql.SQL("({} OR {column} IS NULL AND {value} IS NULL)").format(equal, **parts)


def _type(declared: str) -> sql.SQL:
    """A type's name as the catalogue writes it, quoted where it needs to be."""
    return sql.SQL(cast("LiteralString", declared))  # type: ignore[redundant-cast]  # mypy takes it for str


def _xids(rows: Iterable[RawRow]) -> Iterator[int]:
    return (int(xid) for xid in {row[_XID] for row in rows} if xid is not None and xid != b"0")


def _optional(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


def _text(raw: bytes | None) -> str:
    return raw.decode() if raw is not None else ""


def _too_old(horizon: Horizon | None, snapshot: Snapshot) -> bool:
    """Whether 32-bit ids can no longer be compared with the horizon's."""
    if horizon is None:
        return False
    return snapshot.xmax - horizon.snapshot.xmin > _HALF_XIDS


def _behind(durable: Horizon | None, sent: Horizon) -> bool:
    return durable is None or durable.snapshot.xmax < sent.snapshot.xmax


def _epoch(text: str) -> tuple[int, int]:
    """Epoch milliseconds and nanoseconds within the second, of Postgres' ISO text in UTC."""
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:  # infinity, BC, five-digit years
        return 0, 0
    seconds, micros = divmod(round(moment.timestamp() * 1_000_000), 1_000_000)
    return seconds * 1000 + micros // 1000, micros * 1000
