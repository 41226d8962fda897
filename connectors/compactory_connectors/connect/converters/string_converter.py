"""``StringConverter`` (org.apache.kafka.connect.storage), which writes texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..javatext.java_calendar import MILLIS_PER_DAY, civil_date
from ..javatext.java_number import double_text, double_text_of, float_text, float_text_of
from ..record.record import WHOLES, Cell, Java, Kind, Node, StructNode
from ..record.row_value import row_reader, short_cut, writer_of
from ..record.schema import Schema
from ..setting import Setting, honoured, one_of
from .converter import SCHEMAS_ENABLE, Converter, Render

__all__ = ["StringConverter"]


@dataclass(frozen=True, slots=True)
class StringConverter(Converter):
    """Writes ``toString()`` of keys and values as UTF-8.

    Null is no bytes at all, which for a value is a tombstone.
    """

    options: ClassVar[tuple[Setting, ...]] = (
        honoured("encoding", "character set: UTF-8", "UTF-8", one_of("UTF-8", "UTF8", "utf-8", "utf8")),
        SCHEMAS_ENABLE,
    )

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """Return the function that writes ``node``. Raises ValueError for bytes, whose text is an address."""
        if node is None:
            return lambda _: None
        return row_reader(node, positions, _to_string, _struct_text, _cell_text)


def _struct_text(node: StructNode) -> Callable[[Sequence[bytes | None]], bytes]:
    """Return the function that joins members as ``Struct{a=1,b=x}``; fields that are null are left out."""
    names = [item.name.encode() + b"=" for item in node.schema.fields]
    return lambda texts: (
        b"Struct{" + b",".join(n + t for n, t in zip(names, texts, strict=True) if t is not None) + b"}"
    )


def _cell_text(cell: Cell, to_string: Callable[[Any], bytes]) -> Callable[[bytes], bytes | None]:
    if not cell.steps and (direct := _DIRECT.get(cell.kind)):
        return direct
    convert, quick = writer_of(cell, to_string, None), short_cut(cell)
    if quick is None:
        return convert
    return lambda raw: convert(raw) if (cut := quick(raw)) is None else cut


def _as_it_is(raw: bytes) -> bytes:
    return raw


_DIRECT: Mapping[Kind, Callable[[bytes], bytes]] = {
    Kind.BOOLEAN: lambda raw: b"true" if raw == b"t" else b"false",
    Kind.INTEGER: _as_it_is,
    Kind.FLOAT32: float_text,
    Kind.FLOAT64: double_text,
    Kind.TEXT: _as_it_is,
}


def _year_and_date(millis: int) -> tuple[int, str]:
    """Return the year within its era, and the text of month and day."""
    year, month, day = civil_date(millis // MILLIS_PER_DAY)
    return year if year > 0 else 1 - year, f"-{month:02d}-{day:02d}"


def _sql_date(millis: int) -> bytes:
    """Return ``java.sql.Date.toString``, which prints four digits of a year."""
    year, date = _year_and_date(millis)
    return f"{year % 10_000:04d}{date}".encode()


def _sql_time(millis: int) -> bytes:
    """Return ``java.sql.Time.toString``: no fraction."""
    seconds = millis // 1000 % 86_400
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}".encode()


def _sql_timestamp(micros: int) -> bytes:
    """Return ``java.sql.Timestamp.toString``: a fraction without trailing zeros, at least one digit."""
    millis, fraction = micros // 1000, f"{micros % 1_000_000:06d}".rstrip("0") or "0"
    year, date = _year_and_date(millis)
    return f"{year:04d}{date} ".encode() + _sql_time(millis) + b"." + fraction.encode()


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")


def _java_util_date(millis: int) -> bytes:
    """Return ``java.util.Date.toString`` in UTC."""
    days = millis // MILLIS_PER_DAY
    year, month, day = civil_date(days)
    clock = _sql_time(millis).decode()
    year_of_era = year if year > 0 else 1 - year
    return f"{_WEEKDAYS[days % 7]} {_MONTHS[month - 1]} {day:02d} {clock} UTC {year_of_era}".encode()


_TO_STRING: Mapping[Java, Callable[[Any], bytes]] = {
    Java.BOOLEAN: lambda value: b"true" if value else b"false",
    **dict.fromkeys(WHOLES, b"%d".__mod__),
    Java.FLOAT: float_text_of,
    Java.DOUBLE: double_text_of,
    Java.STRING: lambda value: str(value).encode(),
    Java.DECIMAL: lambda value: str(value).encode(),  # Python and Java share the rules of scientific notation
    Java.SQL_DATE: _sql_date,
    Java.SQL_TIME: _sql_time,
    Java.SQL_TIMESTAMP: _sql_timestamp,
    Java.DATE: _java_util_date,
}


def _to_string(_schema: Schema, java: Java) -> Callable[[Any], bytes]:
    """Return ``toString`` for values that are not null. Raises ValueError for bytes, whose text is an address."""
    if java is Java.BYTES:
        raise ValueError("StringConverter can't write bytes: Java would write the address of an array")
    return _TO_STRING[java]
