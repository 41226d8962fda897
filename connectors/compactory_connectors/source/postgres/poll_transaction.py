"""Read-only transactions, each on one snapshot, in which tables, views and queries are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from compactory.errors import CompactoryError
from compactory_connectors.postgres.snapshot import Snapshot

from .chunk_reader import ChunkReader
from .server import Server, parts_statement, statement

__all__ = ["PollSnapshot", "TableReplaced", "poll_transaction", "read_transaction"]


class TableReplaced(CompactoryError):
    """The table's name belongs to another table now, or to none. A new session reads the catalogue again."""

    retryable = True


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


@contextmanager
def poll_transaction(
    server: Server,
    table: sql.Identifier,
    table_oid: int,
    *,
    shape: str | None = None,
    indexed: bool = False,
    streaming: bool = False,
    prefetched: Sequence[ChunkReader] = (),
) -> Iterator[PollSnapshot]:
    """Begin a read-only REPEATABLE READ transaction on a table. It is always rolled back: it has nothing to keep.

    ``indexed``: the poll's rows are found by an index. ``streaming``: plan for the first rows rather than for all.
    ``prefetched``: cursors whose first rows come in the same round trip.
    Raises TableReplaced if the table's name no longer belongs to ``table_oid``, or the table's shape is another one.
    """
    begin = statement(
        "source/begin",
        seqscan=sql.SQL("off" if indexed else "on"),
        fraction=sql.SQL("0.1" if streaming else "1"),
        locked=table,
        prepared=_prepared_statement(server, table, table_oid),
    )
    try:
        row = _begin(server.connection, begin, prefetched)
        if row[3] != table_oid:
            raise TableReplaced(f"table {table.as_string()} was dropped or replaced since this session began")
        if shape not in {None, row[4]}:
            raise TableReplaced(f"table {table.as_string()}: its columns or triggers have changed")
        yield PollSnapshot(Snapshot.parse(row[0]), int(row[1]), int(row[2]), row[4], tuple(row[5]))
    except psycopg.errors.UndefinedTable as error:
        raise TableReplaced(f"table {table.as_string()} was dropped since this session began") from error
    finally:
        if not server.connection.closed:
            server.connection.execute("ROLLBACK")


def _begin(
    connection: psycopg.Connection[Any], begin: sql.Composed, prefetched: Sequence[ChunkReader]
) -> tuple[Any, ...]:
    """Return the row of the begin statement. A cursor that fails is not open then, and fails again when it is read."""
    try:
        return _begin_with(connection, begin, prefetched)
    except psycopg.errors.LockNotAvailable:
        raise
    except psycopg.Error:
        if connection.closed or not prefetched:
            raise
    connection.execute("ROLLBACK")
    return _begin_with(connection, begin, ())


def _begin_with(
    connection: psycopg.Connection[Any], begin: sql.Composed, prefetched: Sequence[ChunkReader]
) -> tuple[Any, ...]:
    openings = [part for reader in prefetched for part in (sql.SQL("; "), reader.open_statements())]
    cursor = connection.execute(sql.Composed([begin, *openings]))
    while cursor.description is None:
        cursor.nextset()
    row: tuple[Any, ...] | None = cursor.fetchone()
    assert row is not None
    for reader in prefetched:
        reader.take_first_rows(cursor)
    return row


def _prepared_statement(server: Server, table: sql.Identifier, oid: int) -> sql.Identifier:
    """Return the name of the prepared statement for a table's :class:`PollSnapshot`.

    To plan the statement takes longer than to run it, so each table has one.
    """
    name = table.as_string()
    prepared = server.prepared_statements.get((oid, name))
    if prepared is None:
        prepared = sql.Identifier(f"compactory poll {len(server.prepared_statements)}")
        shape = statement("source/shape", oid=sql.Literal(oid))
        server.connection.execute(
            parts_statement("source/prepare_poll", oid, prepared=prepared, table=sql.Literal(name), shape=shape)
        )
        server.prepared_statements[oid, name] = prepared
    return prepared


@contextmanager
def read_transaction(server: Server) -> Iterator[int]:
    """Begin a read-only transaction for relations without row versions. It is always rolled back.

    Yields the time at which it began, in milliseconds since 1970.
    """
    try:
        cursor = server.connection.execute(statement("source/read"))
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        assert row is not None
        yield int(row[0])
    finally:
        if not server.connection.closed:
            server.connection.execute("ROLLBACK")
