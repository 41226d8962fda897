"""Lines of CSV files → records, where quoted text holds line ends; and the record that is the header. Pure.

Spark's own reader is not used for these: it loses the carriage returns within quotes, and in a file whose line ends are
mixed it makes one record of two without a word (Spark 4.2, univocity 2.9).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

from compactory.errors import ConfigError

from ..rules.rules import ReadOptions

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
        """What matches from within quotes to their end."""
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
    """A record as it is in the file; ``line`` counts from 1. ``closed`` is False where a quote never ends."""

    line: int
    text: bytes
    closed: bool = True


class Joiner:
    """Lines of one file after another, in order → records. Belongs to one task.

    What follows a quote that is never closed is read as if that quote were not there: one record is bad, and not all
    that comes after it.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._closing = dialect.closing()
        self._open: list[tuple[int, bytes]] = []

    @property
    def is_open(self) -> bool:
        """Whether the next line belongs to a record that has begun."""
        return bool(self._open)

    def line(self, number: int, text: bytes) -> Iterator[Record]:
        """Take a line, without the newline at its end; gives the records that it completes."""
        inside = self._ends_inside(text, inside=bool(self._open))
        if not self._open and not inside:
            yield Record(number, text)
            return
        self._open.append((number, text))
        if not inside:
            yield Record(self._open[0][0], b"\n".join(line for _, line in self._open))
            self._open = []
        elif len(self._open) >= MOST_LINES:
            yield from self._give_up()

    def end(self) -> Iterator[Record]:
        """The file is over: gives what is left of it."""
        while self._open:
            yield from self._give_up()

    def _give_up(self) -> Iterator[Record]:
        (number, text), *rest = self._open
        self._open = []
        yield Record(number, text, closed=False)
        for line in rest:
            yield from self.line(*line)

    def _ends_inside(self, text: bytes, *, inside: bool) -> bool:
        """Whether quoted text goes on in the next line. A quote opens at the beginning of a field, and nowhere else."""
        quote, place = self._dialect.quote, 0
        while True:
            if inside or text.startswith(quote, place):
                closed = self._closing.match(text, place if inside else place + len(quote))
                if closed is None:
                    return True
                place = closed.end()
            inside = False
            place = text.find(self._dialect.delimiter, place)
            if place < 0:
                return False
            place += len(self._dialect.delimiter)


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
    """The columns that a header names. Raises ConfigError where it is not in the encoding that the rules say."""
    try:
        text = record.decode(options.encoding)
    except UnicodeDecodeError:
        raise ConfigError(
            f"{label}: its header is not {options.encoding} text; say read.encoding in the rules"
        ) from None
    rows = csv.reader([text], delimiter=options.delimiter, quotechar=options.quote, escapechar=options.escape)
    return tuple(name.strip() for row in rows for name in row)
