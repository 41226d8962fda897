"""``TimestampConverter$Key/$Value``: from one form of a time to another.

The class is org.apache.kafka.connect.transforms.TimestampConverter; everything is in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from ..javatext.date_format import DateFormat
from ..javatext.java_calendar import MILLIS_PER_DAY
from ..javatext.java_number import clamped, divided
from ..record.record import TIMES, Cell, Constant, Java, Kind, Node, Record, RowError, Step, StructNode, with_step
from ..record.schema import DATE, TIME, TIMESTAMP, Schema, Type
from ..setting import one_of, option
from .transform import Side, Transform, TransformError, change_fields, no_defaults

__all__ = ["TimestampConverter"]

_UNITS = {"seconds": (1000, 1), "milliseconds": (1, 1), "microseconds": (1, 1000), "nanoseconds": (1, 1_000_000)}
"""The milliseconds in a unit, and the units in a millisecond; one of the two is 1."""

_SCHEMAS = {
    "string": Schema(type=Type.STRING),
    "unix": Schema(type=Type.INT64),
    "Date": Schema.date(),
    "Time": Schema.time(),
    "Timestamp": Schema.timestamp(),
}


def _pattern(written: str) -> DateFormat | None:
    return DateFormat(written) if written.strip() else None


def _unit(written: str) -> tuple[int, int]:
    return _UNITS[one_of(*_UNITS)(written)]


@dataclass(frozen=True, slots=True)
class TimestampConverter(Transform):
    """Converts ``field`` of the struct, if it has one, or the whole key or value if ``field`` is empty."""

    side: Side
    field: str = option("field that holds the time; empty: the whole value", "")
    target_type: str = option(
        "type of the result: string, unix, Date, Time or Timestamp",
        parse=one_of("string", "unix", "Date", "Time", "Timestamp"),
    )
    format: DateFormat | None = option("SimpleDateFormat pattern of texts", "", _pattern)
    unix_precision: tuple[int, int] = option("unit of unix times", "milliseconds", _unit)
    replace_null_with_default: bool = no_defaults()

    def __post_init__(self) -> None:
        if self.target_type == "string" and self.format is None:
            raise ValueError("target.type string needs format, a SimpleDateFormat pattern")

    def apply(self, record: Record) -> Record:
        half = self.side.of(record)
        if half is None:
            return record
        if not self.field:
            return self.side.put(record, self._converted(half, str(self.side)))
        return change_fields(record, self.side, "TimestampConverter", [self.field], self._converted)

    def _converted(self, node: Node, name: str) -> Node:
        if isinstance(node, StructNode):
            raise TransformError(f"{name} is a struct, not a time")
        read = self._to_millis(node, name)
        schema = _SCHEMAS[self.target_type].as_optional(node.schema.optional)
        if self.target_type == "Timestamp" and node.java in TIMES:
            return replace(node, schema=schema)  # the Java class returns the same object
        write = self._from_millis()
        java = {"string": Java.STRING, "unix": Java.LONG}.get(self.target_type, Java.DATE)
        quick = self.target_type == "string" and isinstance(node, Cell) and not node.steps
        plain = _text_cuts(self.format) if quick else {}
        step = Step(lambda value: write(read(value)), plain, to_char=_to_char(self.format) if plain else None)
        return with_step(node, schema, java, step)

    def _to_millis(self, node: Cell | Constant, name: str) -> Callable[[Any], int]:
        schema = node.schema
        if schema.name in {DATE, TIME, TIMESTAMP}:
            return (lambda micros: micros // 1000) if node.java is Java.SQL_TIMESTAMP else int
        if schema.type is Type.INT64:
            in_unit, in_milli = self.unix_precision
            return lambda value: divided(clamped(value * in_unit), in_milli)
        if schema.type is not Type.STRING:
            raise TransformError(f"{name} is of type {schema.name or schema.type.value}, which is not a time")
        if self.format is None:
            raise TransformError(f"{name} is text, which needs format, a SimpleDateFormat pattern")
        return _text_reader(self.format)

    def _from_millis(self) -> Callable[[int], Any]:
        if self.target_type == "string":
            assert self.format is not None
            return self.format.format
        if self.target_type == "unix":
            in_unit, in_milli = self.unix_precision
            return lambda millis: divided(clamped(millis * in_milli), in_unit)
        if self.target_type == "Date":
            return _midnight
        return (lambda millis: millis % MILLIS_PER_DAY) if self.target_type == "Time" else int


def _text_reader(date_format: DateFormat) -> Callable[[str], int]:
    def to_millis(value: str) -> int:
        try:
            return date_format.read(value)
        except ValueError as error:
            raise RowError(f"TimestampConverter: {error} {date_format.pattern!r}") from None

    return to_millis


def _midnight(millis: int) -> int:
    day = millis - millis % MILLIS_PER_DAY
    if day != clamped(day):
        raise RowError("TimestampConverter: -infinity has no day")
    return day


_POSITIONS = {("y", 4): (0, 4), ("M", 2): (5, 7), ("d", 2): (8, 10), ("H", 2): (11, 13), ("m", 2): (14, 16)}
_POSITIONS |= {("s", 2): (17, 19), ("S", 3): (20, 23)}
"""Slices of a pattern's fields in Postgres' text ``2024-01-01 11:11:11.123``."""

_HYPHEN = ord("-")  # after a year of four digits
_C = ord("C")  # of BC

_PLAIN_LITERAL = set(" -_:.,;/+TZ()[]")


def _text_cuts(pattern: DateFormat | None) -> Mapping[Kind, Callable[[bytes], bytes | None]]:
    """Return the short cuts that slice Postgres' text, for the years 1583 to 9999; none for other patterns."""
    template = b""
    cuts: list[slice] = []
    for part, count in pattern.parts if pattern else ():
        if count and (part, count) in _POSITIONS:
            template += b"%b"
            cuts.append(slice(*_POSITIONS[part, count]))
        elif not count and set(part) <= _PLAIN_LITERAL:
            template += part.encode()
        else:
            return {}
    if len(cuts) < 2:
        return {}
    merged = _merged(template, cuts)

    def timestamp(raw: bytes) -> bytes | None:
        length = len(raw)
        if raw < b"1583" or not 19 <= length <= 26 or raw[4] != _HYPHEN or raw[-1] == _C:
            return None
        if length < 23:
            raw = (raw + b"." if length == 19 else raw).ljust(23, b"0")
        return merged(raw)

    def timestamptz(raw: bytes) -> bytes | None:
        return timestamp(raw[:-3]) if raw.endswith(b"+00") else None

    return {Kind.TIMESTAMP: timestamp, Kind.TIMESTAMPTZ: timestamptz}


_TO_CHAR = {"y": "YYYY", "M": "MM", "d": "DD", "H": "HH24", "m": "MI", "s": "SS", "S": "MS"}


def _to_char(pattern: DateFormat | None) -> str:
    """Return the pattern of Postgres' ``to_char`` for a pattern that has short cuts."""
    parts = pattern.parts if pattern else ()
    return "".join(_TO_CHAR[part] if count else f'"{part}"' if {*part} & {*"TZ"} else part for part, count in parts)


def _merged(template: bytes, cuts: list[slice]) -> Callable[[bytes], bytes]:
    """Return one slice if the pattern is a part of Postgres' text, else the template of a slice per field."""
    sample = b"2024-05-06 07:08:09.123"
    whole = sample.find(template % tuple(sample[cut] for cut in cuts))
    if whole >= 0 and cuts == sorted(cuts, key=lambda cut: cut.start):
        first, last = cuts[0].start, cuts[-1].stop
        if template.startswith(b"%b") and template.endswith(b"%b"):
            return itemgetter(slice(first, last))
    pick = itemgetter(*cuts)
    return lambda raw: template % pick(raw)
