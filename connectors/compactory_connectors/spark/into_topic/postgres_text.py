"""Values in Arrow's columns → the text that Postgres would send of them, in the formats that a source's session sets.

So a row that never was in a table goes through the very function that makes records of a table's rows. Pure; Spark's
strings are taken for Postgres' own text (see ``column_types``) but where it spells a value in one way only. Sources:
``float8out``, ``EncodeDateTime`` and ``jsonb_out`` of PostgreSQL; the formats are ``watched_connection.FORMATS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute

from compactory_connectors.source.javatext.java_calendar import proleptic_date, proleptic_day_number
from compactory_connectors.source.record.record import RowError

from ..column_types import ColumnType
from .jsonb_text import jsonb_text

__all__ = ["Text", "Texts", "text_of", "unwritable"]

Text: TypeAlias = bytes | RowError | None
"""A value in Postgres' text format; RowError where it is none of its type."""
Texts: TypeAlias = Callable[[pa.Array], list[Text]]

_compute: Any = pyarrow.compute  # makes its functions when it is imported, which type checkers do not see
_AS_THEY_ARE: Final = {"text", "character varying", "character", "name", "xml", "json", "numeric"}
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_SPECIAL: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity", "0": b"0", "-0": b"-0"}
_PLAIN = re.compile(r"-?(?:[1-9]\d{0,4}|0)(?:\.(?!000)\d+)?")
_PLAIN_SCALE: Final = 6
"""Digits after the point up to which Arrow writes no decimal with an exponent."""
_FIRST, _LAST = proleptic_day_number(1, 1, 1), proleptic_day_number(10_000, 1, 1)
_DAY_MICROS: Final = 86_400_000_000
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHAPES: Final = {
    "uuid": _UUID,
    "time without time zone": re.compile(rb"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,5}[1-9])?|24:00:00"),
    "oid": re.compile(rb"0|[1-9]\d{0,9}"),
}
"""What a string has to look like to be what Postgres would send, for types of which more is read than is written."""


def text_of(kind: ColumnType) -> Texts:
    """The function of a column of a type that is not :func:`unwritable`.

    It raises TypeError for a column that Spark holds in something else.
    """
    if kind.spark.startswith("decimal"):
        return _decimals
    return _HELD.get(kind.spark) or _strings(kind)


def unwritable(kind: ColumnType, type_kind: str = "b") -> str | None:
    """Why values of the type can't be written without Postgres, or None. ``type_kind`` is ``pg_type.typtype``."""
    if type_kind == "e" or kind.spark != "string" or kind.name in _AS_THEY_ARE or kind.name in {*_SHAPES, "jsonb"}:
        return None
    return f"only Postgres itself knows how it spells values of type {kind}"


def _expecting(held: Callable[[pa.DataType], bool], write: Texts) -> Texts:
    def checked(column: pa.Array) -> list[Text]:
        if not held(column.type):
            raise TypeError(f"a column of {column.type}")
        return write(column)

    return checked


def _ascii(column: pa.Array) -> list[Text]:
    found: list[Text] = column.cast(pa.string()).cast(pa.binary()).to_pylist()
    return found


def _booleans(column: pa.Array) -> list[Text]:
    return [None if value is None else b"t" if value else b"f" for value in column.to_pylist()]


def _decimals(column: pa.Array) -> list[Text]:
    """As many digits after the point as the type has."""
    if not pa.types.is_decimal(column.type):
        raise TypeError(f"a column of {column.type}")
    if column.type.scale <= _PLAIN_SCALE:
        return _ascii(column)
    return [None if value is None else f"{value:f}".encode() for value in column.to_pylist()]


def _floats(most: int) -> Texts:
    """The shortest digits that read back the same, with an exponent from 10^``most`` on and below 10^-4."""

    def write(column: pa.Array) -> list[Text]:
        return [None if text is None else _float(text, most) for text in column.cast(pa.string()).to_pylist()]

    return write


def _float(text: str, most: int) -> bytes:
    if _PLAIN.fullmatch(text):
        return text.encode()
    if (special := _SPECIAL.get(text)) is not None:
        return special
    match = _NUMBER.fullmatch(text)
    assert match is not None
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", int(match[4] or 0)
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + exponent - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if point - 1 < -4 or point - 1 >= most:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1:+03d}".encode()
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".encode()
    digits = digits.ljust(point, "0")
    return f"{sign}{digits[:point]}{'.' if digits[point:] else ''}{digits[point:]}".encode()


def _dates(column: pa.Array) -> list[Text]:
    days = column.cast(pa.int32())
    if _beyond(days, 1):
        return [None if day is None else b"".join(_date(day)) for day in days.to_pylist()]
    return _bytes(column.cast(pa.string()))


def _timestamps(zone: bytes) -> Texts:
    def write(column: pa.Array) -> list[Text]:
        local = column.cast(pa.timestamp("us"))
        micros = local.cast(pa.int64())
        if _beyond(micros, _DAY_MICROS):
            return [None if moment is None else _timestamp(moment, zone) for moment in micros.to_pylist()]
        texts = _compute.utf8_rtrim(_compute.utf8_rtrim(local.cast(pa.string()), characters="0"), characters=".")
        return _bytes(_compute.binary_join_element_wise(texts, zone.decode(), "") if zone else texts)

    return write


def _beyond(numbers: pa.Array, day: int) -> bool:
    """Whether something is out of the years 1 to 9999, in which Arrow writes as Postgres does."""
    ends = _compute.min_max(numbers)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    return least is not None and (least < _FIRST * day or most >= _LAST * day)


def _date(days: int) -> tuple[bytes, bytes]:
    """The date, and what stands behind it and its time of day."""
    year, month, day = proleptic_date(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}".encode(), b" BC" if year <= 0 else b""


def _timestamp(micros: int, zone: bytes) -> bytes:
    days, rest = divmod(micros, _DAY_MICROS)
    seconds, fraction = divmod(rest, 1_000_000)
    date, era = _date(days)
    clock = f" {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    tail = f".{fraction:06d}".rstrip("0") if fraction else ""
    return date + f"{clock}{tail}".encode() + zone + era


def _hexadecimal(column: pa.Array) -> list[Text]:
    return [None if value is None else b"\\x" + value.hex().encode() for value in column.to_pylist()]


def _bytes(texts: pa.Array) -> list[Text]:
    found: list[Text] = texts.cast(pa.binary()).to_pylist()
    return found


def _strings(kind: ColumnType) -> Texts:
    """Texts as they are; of a type with forms of its own, in those alone."""
    if kind.name == "jsonb":
        read: Callable[[bytes], Text] = jsonb_text
    elif kind.name in _SHAPES:
        read = _shaped(kind)
    else:
        return _expecting(_is_string, _bytes)

    def write(column: pa.Array) -> list[Text]:
        return [None if text is None or isinstance(text, RowError) else read(text) for text in _bytes(column)]

    return _expecting(_is_string, write)


def _shaped(kind: ColumnType) -> Callable[[bytes], Text]:
    shape = _SHAPES[kind.name]

    def read(text: bytes) -> Text:
        return text if shape.fullmatch(text) else RowError(f"is not {kind} as Postgres writes it")

    return read


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_HELD: Final[dict[str, Texts]] = {
    "boolean": _expecting(pa.types.is_boolean, _booleans),
    "smallint": _expecting(pa.types.is_integer, _ascii),
    "int": _expecting(pa.types.is_integer, _ascii),
    "bigint": _expecting(pa.types.is_integer, _ascii),
    "float": _expecting(pa.types.is_float32, _floats(6)),
    "double": _expecting(pa.types.is_float64, _floats(15)),
    "date": _expecting(pa.types.is_date32, _dates),
    "timestamp_ntz": _expecting(pa.types.is_timestamp, _timestamps(b"")),
    "timestamp": _expecting(pa.types.is_timestamp, _timestamps(b"+00")),
    "binary": _expecting(lambda kind: bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)), _hexadecimal),
}
