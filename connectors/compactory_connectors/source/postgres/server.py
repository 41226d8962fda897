"""The source's connection to Postgres, and the identity of its server.

It knows SQL sessions and nothing of Kafka. psycopg errors leave it unchanged: the session that owns the connection
decides what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import Any, Self
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import scalar_row

from compactory.errors import ConfigError
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.session import refuse_pooling
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.postgres.watched_connection import connect
from compactory_sql import SOURCE_LOCK_CLASS, query

from ..offsets.offset_parts import Identity
from .chunk_reader import RawRow, raw_rows

__all__ = ["STANDBY", "Server", "connected", "connector_lock", "parts_statement", "statement"]

STANDBY = (
    "the source needs a read-write server, and this one is a standby; point connection.url at the primary"
    " (several hosts and targetServerType=primary find it)"
)


def statement(name: str, **parts: sql.Composable) -> sql.Composed:
    """Return a named query with its identifiers and conditions filled in."""
    return sql.SQL(query(name)).format(**parts)


def parts_statement(name: str, oid: int, **parts: sql.Composable) -> sql.Composed:
    """Return a named query about a table and all relations that hold rows of it: partitions and children."""
    table = sql.Literal(oid)
    return statement(name, oid=table, parts=statement("source/parts", oid=table), **parts)


def connector_lock(connector: str) -> int:
    """Return the key of the advisory lock that every running source of this connector shares."""
    return int.from_bytes(sha256(connector.encode()).digest()[:4], "big", signed=True)


class Server:
    """A connection to a read-write server. Owned by one thread.

    Raises ConfigError when the server is a standby: its snapshots list no running transactions.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        row = connection.execute(query("source/server")).fetchone()
        assert row is not None
        standby, timeline, system, started, statistics, self.database, database_oid = row
        if standby:
            raise ConfigError(STANDBY)
        self.prepared_statements: dict[tuple[int, str], sql.Identifier] = {}
        """Names of prepared statements by table oid and name, of the poll transactions."""
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
        self.connection.close()

    def identity(self, table_oid: int) -> Identity:
        return Identity(**self._identity, table_oid=table_oid)

    def begin_session(self, connector: str, stored_sessions: Iterable[str]) -> None:
        """Write a new session id beside the lease, and add it and the database's earlier ones to identities.

        ``stored_sessions`` are the ids that stored offsets name. Where the lease is a lock, the database has no ids.
        """
        session, row = str(uuid4()), None
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION READ WRITE")
            can_store = self.scalar(statement("lease/can_store_sessions"))
            if can_store:
                parameters = {"connector": connector, "session": session, "kept": [*stored_sessions]}
                row = self.connection.execute(query("lease/add_session"), parameters).fetchone()
        if can_store and row is None:
            return
        self._identity["session"] = session if can_store else None
        self._identity["sessions"] = frozenset(map(str, row[0])) if row is not None else frozenset()

    def shape(self, table_oid: int) -> str:
        """Return a digest of the table's columns and triggers; see the query."""
        shape = statement("source/shape", oid=sql.Literal(table_oid))
        return str(self.scalar(parts_statement("source/shape_now", table_oid, shape=shape)))

    def foreign_parts(self, table_oid: int) -> list[str]:
        """Return the names of the table's partitions and children that are foreign tables."""
        return self.column(parts_statement("source/foreign_parts", table_oid))

    def current_snapshot(self) -> Snapshot:
        """Return a snapshot of this moment, outside of a poll."""
        return Snapshot.parse(self.scalar(statement("source/snapshot")))

    def scalar(self, statement: sql.Composed) -> Any:
        """Return the first value of the first row, or None."""
        cursor = self.connection.cursor(row_factory=scalar_row)
        return cursor.execute(statement).fetchone()

    def column(self, statement: sql.Composed) -> list[Any]:
        """Return the first value of every row."""
        return self.connection.cursor(row_factory=scalar_row).execute(statement).fetchall()

    def rows(self, statement: sql.Composed) -> list[RawRow]:
        return raw_rows(self.connection.execute(statement))

    def lock_holders(self, oid: int) -> list[str]:
        """Describe the sessions that lock a table, or a partition of it, against readers."""
        return [str(text) for text in self.column(statement("source/lock_holders", oid=sql.Literal(oid)))]

    def mark_running(self, connector: str) -> None:
        """Show to other sessions, until this connection ends, that a source of this connector runs."""
        key = sql.Literal(connector_lock(connector))
        self.scalar(statement("source/lock_running", **{"class": sql.Literal(SOURCE_LOCK_CLASS), "key": key}))

    def running_sources(self, connector: str) -> list[str]:
        """Describe the sources of this connector that are connected to this database, without this connection."""
        key = sql.Literal(connector_lock(connector) % (1 << 32))
        running = statement("source/running_sessions", **{"class": sql.Literal(SOURCE_LOCK_CLASS), "key": key})
        return [str(text) for text in self.column(running)]


@contextmanager
def connected(connection: Connection) -> Iterator[Server]:
    """Open a server for as long as the context lasts. Raises as postgres_errors does."""
    with postgres_errors(connection), closing(Server.open(connection.conninfo)) as server:
        yield server
