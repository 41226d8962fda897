"""How much goes into one page, in rows and in bytes, and into one fetch of its rows. Pure."""

from __future__ import annotations

__all__ = ["PAGE_ROWS", "PageBytes", "PageFill"]

PAGE_ROWS = 10_000
"""Rows of one Kafka transaction; an abandoned one blocks readers, so it stays short."""

_FIRST = 1 << 20
_LEAST = 1 << 16
_MOST = 1 << 23
_LONG = 1.0  # seconds that a transaction should take at the most

_FIRST_FETCH = 32
_MOST_FETCH = 1000


class PageBytes:
    """How many bytes a page may have: more while Kafka takes pages quickly, fewer after one that took long.

    It begins small, so that the first page gets through a slow network. A page has one row at least, however large.
    """

    def __init__(self) -> None:
        self.limit = _FIRST

    def took(self, size: int, seconds: float) -> None:
        """A page of ``size`` bytes was published, or given up, within ``seconds``."""
        if seconds > _LONG:
            self.limit = max(_LEAST, self.limit // 2)
        elif 2 * size > self.limit:
            self.limit = min(_MOST, 2 * self.limit)


class PageFill:
    """Divides pages of at most ``rows`` rows into fetches that are small while it is not known how large rows are.

    A page ends where no other row would fit. Only its last fetch may exceed its bytes: it has as many rows as fit if
    they are as large as those before.
    """

    def __init__(self, rows: int, page_bytes: PageBytes | None = None) -> None:
        self._rows = rows
        self._bytes = page_bytes or PageBytes()
        self._fetch = _FIRST_FETCH
        self._row_bytes = 1
        self.begin()

    def begin(self) -> None:
        """Begin a page."""
        self._rows_left, self._bytes_left = self._rows, self._bytes.limit

    def ask(self) -> int:
        """How many rows to fetch next."""
        return max(1, min(self._rows_left, self._fetch, self._bytes_left // self._row_bytes))

    def came(self, rows: int, size: int) -> bool:
        """Count the rows and bytes of a fetch; whether the page is full. Then the next one begins."""
        if rows:
            self._row_bytes = max(1, size // rows)
        self._fetch = min(_MOST_FETCH, 4 * self._fetch)
        self._rows_left -= rows
        self._bytes_left -= size
        full = self._rows_left <= 0 or self._bytes_left < self._row_bytes
        if full:
            self.begin()
        return full
