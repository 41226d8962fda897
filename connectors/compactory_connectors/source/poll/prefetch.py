"""A server-side cursor whose next rows Postgres prepares while the last ones are being used."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import generators, sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from ..postgres.page_size import PageFill

__all__ = ["results_ahead"]


def results_ahead(
    connection: psycopg.Connection[Any], name: str, query: sql.Composed, fill: PageFill
) -> Generator[tuple[PGresult, bool, bool]]:
    """Results, each with whether it ends a page and whether it is the last one, which may be empty.

    They belong to the running transaction. Before a result is handed over the next rows are asked for: until the
    generator goes on or is closed, nothing else may be asked over this connection, and what Postgres sends waits in the
    sockets. A thread that received it meanwhile would cost more than it brings: it fights for the interpreter's lock.
    Raises psycopg.Error.
    """
    cursor = sql.Identifier(name)
    connection.execute(sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}").format(cursor, query))
    asked = 0
    try:
        asked = _ask(connection, cursor, fill.ask())
        while asked:
            wanted, asked = asked, 0
            result = _answer(connection)
            full = fill.came(result.ntuples, _size(result))
            if result.ntuples == wanted:
                asked = _ask(connection, cursor, fill.ask())
            else:
                fill.begin()
            yield result, full or not asked, not asked
    finally:
        if asked and not connection.closed:
            with suppress(psycopg.Error):  # whoever gives up has a reason of their own
                _answer(connection)


def _ask(connection: psycopg.Connection[Any], cursor: sql.Identifier, rows: int) -> int:
    fetch = sql.SQL("FETCH FORWARD {} FROM {}").format(sql.Literal(rows), cursor)
    connection.pgconn.send_query(fetch.as_bytes(connection))
    connection.pgconn.flush()
    return rows


def _size(result: PGresult) -> int:
    """The bytes of the values that may be large: all columns of a formatted row but its key and place."""
    get = result.get_value
    return sum(len(get(row, 1) or b"") + len(get(row, 2) or b"") for row in range(result.ntuples))


def _answer(connection: psycopg.Connection[Any]) -> PGresult:
    result: PGresult = connection.wait(generators.execute(connection.pgconn))[-1]
    if result.status != ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    return result
