"""Lines of CSV files → records, where quoted text holds line ends; and the record that is the header. Pure.

Spark's own reader is not used for these: it loses the carriage returns within quotes, and in a file whose line ends are
mixed it makes one record of two without a word (Spark 4.2, univocity 2.9).
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compactory.errors import ConfigError

if TYPE_CHECKING:
    from ..rules.rules import ReadOptions  # which tasks need not import

__all__ = ["MOST_LINES", "Dialect", "Joiner", "Record", "header", "header_names"]

MOST_LINES = 1_000
"""A record has no more lines: a quote that is not closed by then never was meant to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The signs of a CSV file, as bytes."""

    delimiter: bytes
    quote: bytes
    escape: bytes

    @staticmethod
    def of(options: ReadOptions) -> Dialect:
        """The dialect that these options describe."""
        escape = options.escape or options.quote
        return Dialect(
            delimiter=options.delimiter.encode(options.encoding),
            quote=options.quote.encode(options.encoding),
            escape=escape.encode(options.encoding),
        )

    def closing(self) -> re.Pattern[bytes]:
        """A pattern that matches from within quotes to their end."""
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        doubled = quote + quote if self.escape == self.quote else escape + b"."
        return re.compile(b"(?s:(?:" + doubled + b"|[^" + quote + escape + b"])*+)" + quote)

    @property
    def doubles(self) -> bool:
        """Whether two quotes stand for one within quotes, and :attr:`quoted` and :attr:`opening` tell the truth."""
        return self.escape == self.quote and all(
            len(sign) == 1 and sign.isascii() for sign in (self.quote, self.delimiter)
        )

    @property
    def quoted(self) -> str:
        """A regular expression for fields in quotes, once doubled quotes are taken out; for Java, RE2 and Python.

        With these taken out as well, but for what stands before their first quote, a line has open quotes at its end
        where :attr:`opening` is found.
        """
        return f"{self.opening}[^{_sign(self.quote)}]*{_sign(self.quote)}"

    @property
    def opening(self) -> str:
        """A regular expression for a quote at the beginning of a field."""
        return f"(^|{_sign(self.delimiter)}){_sign(self.quote)}"


def _sign(sign: bytes) -> str:
    return f"\\x{sign[0]:02x}"


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it is in the file; ``line`` counts from 1. ``fault``: what is wrong with a quote that it opens."""

    line: int
    text: bytes
    fault: str | None = None


class Joiner:
    """Lines of one file after another, in order → records. Belongs to one task.

    A quote is a mistake where it is never closed. It is one too where a later quote closes it by chance: the record of
    several lines has not ``fields`` fields then, or text behind its quotes. Only the line that opens it is bad; the
    lines after it are read by themselves.
    """

    def __init__(self, dialect: Dialect, fields: int | None = None) -> None:
        self._dialect = dialect
        self._closing = dialect.closing()
        self._after = re.compile(rb"[ \t]*(?:\r?\Z|" + re.escape(dialect.delimiter) + b")")
        self._fields = fields
        self._open: list[tuple[int, bytes]] = []
        self._again: deque[tuple[int, bytes]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether the next line belongs to a record that has begun."""
        return bool(self._open)

    def line(self, number: int, text: bytes) -> Iterator[Record]:
        """Take a line, without the newline at its end; gives the records that it completes."""
        self._again.append((number, text))
        while self._again:
            yield from self._take(*self._again.popleft())

    def end(self) -> Iterator[Record]:
        """The file is over: gives what is left of it."""
        while self._open:
            yield self._give_up("is never closed")
            while self._again:
                yield from self._take(*self._again.popleft())

    def _take(self, number: int, text: bytes) -> Iterator[Record]:
        inside = self._fields_of(text, inside=bool(self._open)) is None
        if not self._open and not inside:
            yield Record(number, text)
            return
        self._open.append((number, text))
        if inside:
            if len(self._open) >= MOST_LINES:
                yield self._give_up(f"is not closed within {MOST_LINES:,} lines")
            return
        joined = b"\n".join(line for _, line in self._open)
        if self._fields is not None and self._fields_of(joined, inside=False) != self._fields:
            yield self._give_up(f"ends on line {number}, where the columns no longer fit")
            return
        yield Record(self._open[0][0], joined)
        self._open = []

    def _give_up(self, why: str) -> Record:
        """The first of the open lines as a bad record; the others are taken again."""
        (number, text), *rest = self._open
        self._open = []
        self._again.extendleft(reversed(rest))
        return Record(number, text, f"a quote opened on line {number} {why}")

    def _fields_of(self, text: bytes, *, inside: bool) -> int | None:
        """How many fields end in this text; None where quoted text goes on in the next line, 0 where it ends within
        a field. A quote opens at the beginning of a field, and nowhere else.
        """
        quote, delimiter, place, fields, whole = self._dialect.quote, self._dialect.delimiter, 0, 1, True
        while True:
            if inside or text.startswith(quote, place):
                closed = self._closing.match(text, place if inside else place + len(quote))
                if closed is None:
                    return None
                place = closed.end()
                whole = whole and self._after.match(text, place) is not None
            inside = False
            place = text.find(delimiter, place)
            if place < 0:
                return fields if whole else 0
            place += len(delimiter)
            fields += 1


def header(beginning: bytes, options: ReadOptions) -> Record | None:
    """The first record of a file that is not blank; None where it has none."""
    joiner = Joiner(Dialect.of(options))
    lines = beginning.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, 1):
        for record in joiner.line(number, line):
            if record.text.strip():
                return Record(record.line, record.text.rstrip(b"\r"))
    return next((record for record in joiner.end() if record.text.strip()), None)


def header_names(record: bytes, options: ReadOptions, label: str) -> tuple[str, ...]:
    """The columns that a header names.

    Raises ConfigError for a header in another encoding than that of the rules, or one that ends with a carriage return
    alone.
    """
    try:
        text = record.decode(options.encoding)
    except UnicodeDecodeError:
        raise ConfigError(
            f"{label}: its header is not {options.encoding} text; say read.encoding in the rules"
        ) from None
    rows = csv.reader([text], delimiter=options.delimiter, quotechar=options.quote, escapechar=options.escape)
    try:
        return tuple(name.strip() for row in rows for name in row)
    except csv.Error as error:
        raise ConfigError(
            f"{label}: its header can't be read: {error}; lines have to end with LF or CR LF, so convert a file with CR"
            " alone (tr '\\r' '\\n')"
        ) from None
