"""Pages and the server-side cursors that fill them: rows and bytes of a page, and of one fetch of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

__all__ = ["PAGE_ROWS", "ChunkReader", "PageBytes", "PageFill", "RawRow", "raw_rows"]

RawRow: TypeAlias = Sequence[bytes | None]
"""A row's values in Postgres' text format."""

PAGE_ROWS = 10_000
"""Rows of one Kafka transaction. An abandoned transaction blocks readers, so it stays short."""

_FIRST_BYTES = 1 << 20
_LEAST_BYTES = 1 << 16
_MOST_BYTES = 1 << 23
_LONGEST = 1.0  # seconds that a transaction should take at the most

_FIRST_FETCH = 32
_MOST_FETCH = 1000


class PageBytes:
    """The limit of a page in bytes: higher while Kafka takes pages quickly, lower after one that took long.

    It begins low, so that the first page gets through a slow network. A page has at least one row, however large.
    """

    def __init__(self) -> None:
        self.limit = _FIRST_BYTES

    def adjust(self, size: int, seconds: float) -> None:
        """Adjust the limit to a page of ``size`` bytes that was published, or given up, within ``seconds``."""
        if seconds > _LONGEST:
            self.limit = max(_LEAST_BYTES, self.limit // 2)
        elif 2 * size > self.limit:
            self.limit = min(_MOST_BYTES, 2 * self.limit)


class PageFill:
    """Divides pages of at most ``rows`` rows into fetches, which are small until the size of rows is known.

    A page ends where no further row would fit. Only the last fetch of a page may exceed its bytes: its rows may be
    larger than those of the fetch before.
    """

    def __init__(self, rows: int, page_bytes: PageBytes | None = None) -> None:
        self._rows = rows
        self._bytes = page_bytes or PageBytes()
        self._fetch = _FIRST_FETCH
        self._row_bytes = 1
        self.begin_page()

    def begin_page(self) -> None:
        self._rows_left, self._bytes_left = self._rows, self._bytes.limit

    def fetch_size(self) -> int:
        return max(1, min(self._rows_left, self._fetch, self._bytes_left // self._row_bytes))

    def add_fetch(self, rows: int, size: int) -> bool:
        """Count the rows and bytes of a fetch. Return True if the page is full; the next one has begun then."""
        if rows:
            self._row_bytes = max(1, size // rows)
        self._fetch = min(_MOST_FETCH, 4 * self._fetch)
        self._rows_left -= rows
        self._bytes_left -= size
        is_full = self._rows_left <= 0 or self._bytes_left < self._row_bytes
        if is_full:
            self.begin_page()
        return is_full


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
        self._first_size = 0
        self._fetched: list[RawRow] = []
        self._is_exhausted = False
        self.ended = False
        """The last page had the last row."""

    def read_page(self) -> list[RawRow]:
        """Return the next rows, as many as make a page. A short or empty page is the last one."""
        rows: list[RawRow] = []
        is_full = False
        while not (is_full or self.ended):
            size = self._fill.fetch_size()
            if not self._fetched and not self._is_exhausted:
                cursor = self._connection.execute(self._declare + self._fetch(size))
                while cursor.nextset():  # the result of the fetch comes after that of the declaration
                    pass
                self._declare = sql.Composed([])
                self._fetched = raw_rows(cursor)
                self._is_exhausted = len(self._fetched) < size
            chunk, self._fetched = self._fetched[:size], self._fetched[size:]
            self.ended = self._is_exhausted and not self._fetched
            is_full = self._fill.add_fetch(len(chunk), sum(sum(map(len, filter(None, row))) for row in chunk))
            rows += chunk
        return rows

    def open_statements(self) -> sql.Composed:
        """Return statements that open the cursor and fetch its first rows.

        The caller sends them in one round trip with its own, then calls :meth:`take_first_rows`.
        """
        self._first_size = self._fill.fetch_size()
        return self._declare + self._fetch(self._first_size)

    def take_first_rows(self, cursor: psycopg.Cursor[Any]) -> None:
        """Take the next two results of ``cursor``, which are those of :meth:`open_statements`."""
        cursor.nextset()
        cursor.nextset()
        self._declare, self._fetched = sql.Composed([]), raw_rows(cursor)
        self._is_exhausted = len(self._fetched) < self._first_size
        self.ended = not self._fetched

    def _fetch(self, rows: int) -> sql.Composed:
        return sql.SQL("FETCH FORWARD {} FROM {}").format(sql.Literal(rows), self._name)


def raw_rows(cursor: psycopg.Cursor[Any]) -> list[RawRow]:
    """Return all rows of a result as they came over the wire."""
    result = cursor.pgresult
    if result is None:
        return []
    get, columns = result.get_value, range(result.nfields)
    return [[get(row, column) for column in columns] for row in range(result.ntuples)]
