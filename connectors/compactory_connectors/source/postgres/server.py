"""The Postgres side of the source: one connection, its server's identity, and poll transactions.

It knows SQL sessions and nothing of Kafka. psycopg errors leave it unchanged: the session that owns the connection
decides what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import scalar_row

from compactory.errors import CompactoryError, ConfigError
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.session import refuse_pooling
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.postgres.watched_connection import connect
from compactory_sql import SOURCE_LOCK_CLASS, query

from ..offsets.identity import Identity
from .page_size import PAGE_ROWS, PageFill

__all__ = [
    "STANDBY",
    "ChunkReader",
    "PollSnapshot",
    "RawRow",
    "Server",
    "TableReplaced",
    "connected",
    "connector_lock",
    "statement",
]

STANDBY = (
    "the source needs a read-write server, and this one is a standby; point connection.url at the primary"
    " (several hosts and targetServerType=primary find it)"
)

RawRow = Sequence[bytes | None]
"""A row's values in Postgres' text format."""


class TableReplaced(CompactoryError):
    """The table's name belongs to another table now, or to none; a new session looks again."""

    retryable = True


def statement(name: str, **parts: sql.Composable) -> sql.Composed:
    """A named query with its identifiers and conditions filled in."""
    return sql.SQL(query(name)).format(**parts)


def _of_parts(name: str, oid: int, **others: sql.Composable) -> sql.Composed:
    """A query about a table and all that holds rows of it."""
    its = sql.Literal(oid)
    return statement(name, oid=its, parts=statement("source/parts", oid=its), **others)


@dataclass(frozen=True, slots=True)
class PollSnapshot:
    """The snapshot of a poll transaction, WAL positions in bytes read after its snapshot, and the table's shape in it.

    ``flushed`` is 0 for an unlogged table, which a crash empties whatever was flushed.
    """

    snapshot: Snapshot
    written: int
    flushed: int
    shape: str
    partitions: tuple[int, ...]


def connector_lock(connector: str) -> int:
    """The key of the advisory lock that every running source of this connector shares."""
    return int.from_bytes(sha256(connector.encode()).digest()[:4], "big", signed=True)


class ChunkReader:
    """A server-side cursor of the running transaction, read in pages of raw text rows."""

    def __init__(
        self, connection: psycopg.Connection[Any], name: str, query: sql.Composed, fill: PageFill | None = None
    ) -> None:
        self.name = name
        self._connection = connection
        self._name = sql.Identifier(name)
        self._declare = sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}; ").format(self._name, query)
        self._fill = fill or PageFill(PAGE_ROWS)
        self._first = 0
        self._ahead: list[RawRow] = []
        self._exhausted = False
        self.ended = False
        """The last page had the last row."""

    def page(self) -> list[RawRow]:
        """The next rows, as many as make a page; fewer, or none, where there are no more."""
        rows: list[RawRow] = []
        full = False
        while not (full or self.ended):
            wanted = self._fill.ask()
            if not self._ahead and not self._exhausted:
                cursor = self._connection.execute(self._declare + self._fetch(wanted))
                while cursor.nextset():  # behind the declaration
                    pass
                self._declare = sql.Composed([])
                self._ahead = raw_rows(cursor)
                self._exhausted = len(self._ahead) < wanted
            came, self._ahead = self._ahead[:wanted], self._ahead[wanted:]
            self.ended = self._exhausted and not self._ahead
            full = self._fill.came(len(came), sum(sum(map(len, filter(None, row))) for row in came))
            rows += came
        return rows

    def opening(self) -> sql.Composed:
        """Statements that open the cursor and fetch its first rows, sent with another; then call :meth:`opened`."""
        self._first = self._fill.ask()
        return self._declare + self._fetch(self._first)

    def opened(self, cursor: psycopg.Cursor[Any]) -> None:
        """Take the next two results for those of :meth:`opening`."""
        cursor.nextset()
        cursor.nextset()
        self._declare, self._ahead = sql.Composed([]), raw_rows(cursor)
        self._exhausted = len(self._ahead) < self._first
        self.ended = not self._ahead

    def _fetch(self, rows: int) -> sql.Composed:
        return sql.SQL("FETCH FORWARD {} FROM {}").format(sql.Literal(rows), self._name)


def raw_rows(cursor: psycopg.Cursor[Any]) -> list[RawRow]:
    """All rows of a result as they came over the wire."""
    result = cursor.pgresult
    if result is None:
        return []
    get, columns = result.get_value, range(result.nfields)
    return [[get(row, column) for column in columns] for row in range(result.ntuples)]


class Server:
    """One connection to a read-write server. Owned by one thread.

    Raises ConfigError when the server is a standby: its snapshots list no running transactions.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        row = connection.execute(query("source/server")).fetchone()
        assert row is not None
        standby, timeline, system, started, statistics, self.database, database_oid = row
        if standby:
            raise ConfigError(STANDBY)
        self._sights: dict[tuple[int, str], sql.Identifier] = {}
        self._identity: dict[str, Any] = {
            "system_identifier": system,
            "timeline": timeline,
            "postmaster_start": started,
            "statistics_start": statistics,
            "database_oid": database_oid,
        }

    @classmethod
    def open(cls, conninfo: Mapping[str, Any]) -> Self:
        """Connect. Raises psycopg.Error and ConfigError."""
        connection = connect(conninfo)
        try:
            refuse_pooling(connection)
            return cls(connection)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the connection; advisory locks go with it."""
        self.connection.close()

    def identity(self, table_oid: int) -> Identity:
        """Which server and table transaction ids belong to."""
        return Identity(**self._identity, table_oid=table_oid)

    def begin_session(self, connector: str, kept: Iterable[str]) -> None:
        """Write a new id beside the lease; from now on identities have it, and those that the database had.

        ``kept`` are the ids that stored offsets name. Where the lease is a lock, the database has none.
        """
        session, known = str(uuid4()), None
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION READ WRITE")
            remembers = self.scalar(statement("lease/can_store_sessions"))
            if remembers:
                given = {"connector": connector, "session": session, "kept": [*kept]}
                known = self.connection.execute(query("lease/add_session"), given).fetchone()
        if remembers and known is None:
            return
        self._identity["session"] = session if remembers else None
        self._identity["sessions"] = frozenset(map(str, known[0])) if known is not None else frozenset()

    def shape(self, table_oid: int) -> str:
        """A digest of the table's columns and triggers; see the query."""
        shape = statement("source/shape", oid=sql.Literal(table_oid))
        return str(self.scalar(_of_parts("source/shape_now", table_oid, shape=shape)))

    def foreign_parts(self, table_oid: int) -> list[str]:
        """Names of the table's partitions and children that are foreign tables."""
        return self.column(_of_parts("source/foreign_parts", table_oid))

    def peek(self) -> Snapshot:
        """The current snapshot, outside of a poll."""
        text = self.scalar(statement("source/snapshot"))
        return Snapshot.parse(text)

    @contextmanager
    def poll(
        self,
        table: sql.Identifier,
        table_oid: int,
        *,
        shape: str | None = None,
        indexed: bool = False,
        streaming: bool = False,
        serializable: bool = False,
        ahead: Sequence[ChunkReader] = (),
    ) -> Iterator[PollSnapshot]:
        """A read-only REPEATABLE READ transaction; always rolled back, for there is nothing to keep.

        ``indexed``: an index leads to the rows that are wanted. ``streaming``: first rows soon rather than all rows.
        ``ahead``: cursors whose first rows come along, in the same round trip.
        Raises TableReplaced when the table's name no longer belongs to ``table_oid``, or its shape is not this one.
        """
        begin = statement(
            "source/begin",
            isolation=sql.SQL("SERIALIZABLE" if serializable else "REPEATABLE READ"),
            seqscan=sql.SQL("off" if indexed else "on"),
            fraction=sql.SQL("0.1" if streaming else "1"),
            locked=table,
            sight=self._sight(table, table_oid),
        )
        try:
            row = self._begin(begin, ahead)
            if row[3] != table_oid:
                raise TableReplaced(f"table {table.as_string()} was dropped or replaced since this session began")
            if shape not in {None, row[4]}:
                raise TableReplaced(f"table {table.as_string()}: its columns or triggers have changed")
            yield PollSnapshot(Snapshot.parse(row[0]), int(row[1]), int(row[2]), row[4], tuple(row[5]))
        except psycopg.errors.UndefinedTable as error:
            raise TableReplaced(f"table {table.as_string()} was dropped since this session began") from error
        finally:
            if not self.connection.closed:
                self.connection.execute("ROLLBACK")

    def _begin(self, begin: sql.Composed, ahead: Sequence[ChunkReader]) -> tuple[Any, ...]:
        """The row of the begin statement. Cursors that fail are not open then, and fail again where they are read."""
        try:
            return self._begin_with(begin, ahead)
        except psycopg.errors.LockNotAvailable:
            raise
        except psycopg.Error:
            if self.connection.closed or not ahead:
                raise
        self.connection.execute("ROLLBACK")
        return self._begin_with(begin, ())

    def _begin_with(self, begin: sql.Composed, ahead: Sequence[ChunkReader]) -> tuple[Any, ...]:
        opening = [part for reader in ahead for part in (sql.SQL("; "), reader.opening())]
        cursor = self.connection.execute(sql.Composed([begin, *opening]))
        while cursor.description is None:
            cursor.nextset()
        row: tuple[Any, ...] | None = cursor.fetchone()
        assert row is not None
        for reader in ahead:
            reader.opened(cursor)
        return row

    def _sight(self, table: sql.Identifier, oid: int) -> sql.Identifier:
        """The prepared statement that tells what a poll of this table sees: to plan it takes longer than to run it."""
        name = table.as_string()
        known = self._sights.get((oid, name))
        if known is None:
            known = sql.Identifier(f"compactory sight {len(self._sights)}")
            shape = statement("source/shape", oid=sql.Literal(oid))
            self.connection.execute(
                _of_parts("source/prepare_poll", oid, sight=known, table=sql.Literal(name), shape=shape)
            )
            self._sights[oid, name] = known
        return known

    @contextmanager
    def reading(self, *, serializable: bool = False) -> Iterator[int]:
        """A read-only transaction on one snapshot, for relations without row versions; always rolled back.

        Gives the time at which it began, in milliseconds since 1970.
        """
        level = sql.SQL("SERIALIZABLE" if serializable else "REPEATABLE READ")
        try:
            cursor = self.connection.execute(statement("source/read", isolation=level))
            while cursor.nextset():
                pass
            row = cursor.fetchone()
            assert row is not None
            yield int(row[0])
        finally:
            if not self.connection.closed:
                self.connection.execute("ROLLBACK")

    def scalar(self, statement: sql.Composed) -> Any:
        """The first value of the first row, or None."""
        cursor = self.connection.cursor(row_factory=scalar_row)
        return cursor.execute(statement).fetchone()

    def column(self, statement: sql.Composed) -> list[Any]:
        """The first value of every row."""
        return self.connection.cursor(row_factory=scalar_row).execute(statement).fetchall()

    def rows(self, statement: sql.Composed) -> list[RawRow]:
        """Every row, raw."""
        return raw_rows(self.connection.execute(statement))

    def lockers(self, oid: int) -> list[str]:
        """Sessions that lock a table, or a partition of it, against readers, in words."""
        return [str(text) for text in self.column(statement("source/lockers", oid=sql.Literal(oid)))]

    def announce(self, connector: str) -> None:
        """Let others know, until this connection ends, that a source of this connector runs."""
        key = sql.Literal(connector_lock(connector))
        self.scalar(statement("source/lock_running", **{"class": sql.Literal(SOURCE_LOCK_CLASS), "key": key}))

    def running(self, connector: str) -> list[str]:
        """In words, the sources of this connector that are connected to this database, this connection left out."""
        key = connector_lock(connector) % (1 << 32)
        query = statement(
            "source/running_sessions", **{"class": sql.Literal(SOURCE_LOCK_CLASS), "key": sql.Literal(key)}
        )
        return [str(text) for text in self.column(query)]


@contextmanager
def connected(connection: Connection) -> Iterator[Server]:
    """A server for as long as the context lasts, its errors in our words. Raises as postgres_errors does."""
    with postgres_errors(connection), closing(Server.open(connection.conninfo)) as server:
        yield server
