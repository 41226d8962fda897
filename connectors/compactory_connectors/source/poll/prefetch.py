"""A server-side cursor whose next rows Postgres prepares while the last ones are being used."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import generators, sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

__all__ = ["results_ahead"]


def results_ahead(
    connection: psycopg.Connection[Any], name: str, query: sql.Composed, size: int
) -> Generator[PGresult]:
    """Results of ``size`` rows each, then one of fewer, possibly none. Belongs to the running transaction.

    Before a result is handed over the next rows are asked for: until the generator goes on or is closed, nothing else
    may be asked over this connection, and what Postgres sends waits in the sockets. A thread that received it meanwhile
    would cost more than it brings: it fights for the interpreter's lock. Raises psycopg.Error.
    """
    cursor = sql.Identifier(name)
    fetch = sql.SQL("FETCH FORWARD {} FROM {}").format(sql.Literal(size), cursor)
    connection.execute(sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}").format(cursor, query))
    asked = False
    try:
        _ask(connection, fetch)
        asked = True
        while asked:
            asked = False
            result = _answer(connection)
            if result.ntuples == size:
                _ask(connection, fetch)
                asked = True
            yield result
    finally:
        if asked and not connection.closed:
            with suppress(psycopg.Error):  # whoever gives up has a reason of their own
                _answer(connection)


def _ask(connection: psycopg.Connection[Any], fetch: sql.Composed) -> None:
    connection.pgconn.send_query(fetch.as_bytes(connection))
    connection.pgconn.flush()


def _answer(connection: psycopg.Connection[Any]) -> PGresult:
    result: PGresult = connection.wait(generators.execute(connection.pgconn))[-1]
    if result.status != ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    return result
