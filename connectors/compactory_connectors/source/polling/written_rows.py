"""Reads records that Postgres writes with the SQL renderer, for loads and comparisons.

Postgres prepares the next rows of a server-side cursor while the former ones are used.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress

import orjson
import psycopg
from psycopg import generators, sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from ..mapping.sql_renderer import respelt
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import PageFill, RawRow
from ..postgres.server import Server

__all__ = ["FIRST", "WrittenRows"]

_WHOLE, FIRST = 2, 3
"""Index of the query's own columns in a result. Before them: key, value, the whole row (only of a fallback row)."""

_TEXT = sql.SQL("CASE WHEN {0} IS NOT NULL THEN pg_catalog.concat({0}) END")
"""A value as the type's output function writes it, which a cast to text does not for every type."""

_Texts = list[bytes | None]


class WrittenRows:
    """The records of one table as SQL over its rows ``t``. Owned by one thread."""

    def __init__(self, server: Server, plan: TablePlan) -> None:
        utf8 = server.connection.info.parameter_status("server_encoding") == "UTF8"
        self._formatted = plan.rows.formatted if utf8 else None
        self._connection = server.connection
        self._texts = [_TEXT.format(plan.column(name)) for name in plan.rows.columns]

    @property
    def is_usable(self) -> bool:
        """Return True if Postgres writes this table's records byte for byte as the converters do."""
        return self._formatted is not None

    def columns(self) -> sql.Composable:
        """Return the first columns of a query: key, value, and the whole of a row that Postgres can't write."""
        parts = self._formatted
        assert parts is not None
        whole: sql.Composable = sql.SQL("NULL")
        if parts.fallback is not None:
            texts = sql.SQL(", ").join(self._texts)
            whole = sql.SQL("CASE WHEN {} THEN pg_catalog.to_json(ARRAY[{}])::text END").format(parts.fallback, texts)
        return sql.SQL("{}, {}, {}").format(parts.key, parts.value, whole)

    def read(self, result: PGresult) -> tuple[_Texts, _Texts, dict[int, RawRow]]:
        """Return keys and values of all rows, and the columns of the fallback rows by their numbers."""
        parts = self._formatted
        assert parts is not None
        get, rows = result.get_value, range(result.ntuples)
        keys, values = [get(row, 0) for row in rows], [get(row, 1) for row in rows]
        keys = respelt(keys) if parts.key_escapes else keys
        values = respelt(values) if parts.value_escapes else values
        if parts.fallback is None:
            return keys, values, {}
        return keys, values, {row: _columns_of(whole) for row in rows if (whole := get(row, _WHOLE)) is not None}

    def results(self, name: str, query: sql.Composed, fill: PageFill) -> Generator[tuple[PGresult, bool, bool]]:
        """Yield results, each with True if it ends a page and True if it is the last one, which may be empty.

        They belong to the running transaction. The next rows are requested before a result is handed over: until the
        generator continues or is closed, the connection can't run other statements. Raises psycopg.Error.
        """
        cursor, connection = sql.Identifier(name), self._connection
        connection.execute(sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}").format(cursor, query))
        requested = 0
        try:
            requested = self._ask(cursor, fill.fetch_size())
            while requested:
                requested_before, requested = requested, 0
                result = self._answer()
                full = fill.add_fetch(result.ntuples, _size(result))
                if result.ntuples == requested_before:
                    requested = self._ask(cursor, fill.fetch_size())
                else:
                    fill.begin_page()
                yield result, full or not requested, not requested
        finally:
            if requested and not connection.closed:
                with suppress(psycopg.Error):  # the caller's error is more important
                    self._answer()

    def _ask(self, cursor: sql.Identifier, rows: int) -> int:
        fetch = sql.SQL("FETCH FORWARD {} FROM {}").format(sql.Literal(rows), cursor)
        self._connection.pgconn.send_query(fetch.as_bytes(self._connection))
        self._connection.pgconn.flush()
        return rows

    def _answer(self) -> PGresult:
        result: PGresult = self._connection.wait(generators.execute(self._connection.pgconn))[-1]
        if result.status != ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
        return result


def _size(result: PGresult) -> int:
    """The bytes of the values that may be large: a record's value, and the whole of a fallback row."""
    get = result.get_value
    return sum(len(get(row, 1) or b"") + len(get(row, _WHOLE) or b"") for row in range(result.ntuples))


def _columns_of(whole: bytes) -> list[bytes | None]:
    """Return the columns of a row that came as a JSON array of texts."""
    return [None if text is None else text.encode() for text in orjson.loads(whole)]
