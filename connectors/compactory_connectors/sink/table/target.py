"""A table that is written: its columns, and what a value becomes in each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from compactory_connectors.source.record.schema import DATE, DECIMAL, TIME, TIMESTAMP, Schema, Type
from compactory_sql import query

from .decoding import java_value

__all__ = ["Column", "Conversion", "Target", "column_type", "conversion", "read_target"]

_DAY = 86_400_000
_TYPES = {
    Type.BOOLEAN: "boolean", Type.INT8: "smallint", Type.INT16: "smallint", Type.INT32: "integer",
    Type.INT64: "bigint", Type.FLOAT32: "real", Type.FLOAT64: "double precision", Type.STRING: "text",
    Type.BYTES: "bytea", Type.MAP: "jsonb", Type.STRUCT: "jsonb",
}  # fmt: skip
_NAMED = {DATE: "date", TIME: "time", TIMESTAMP: "timestamp", DECIMAL: "numeric"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``kind`` is its base type's name in pg_type, of an array that of its members with ``[]``.

    ``length`` counts the digits of a bit column.
    """

    name: str
    kind: str
    not_null: bool
    length: int


@dataclass(frozen=True, slots=True)
class Target:
    """One table as it is now."""

    name: sql.Identifier
    text: str
    columns: dict[str, Column]


def read_target(connection: psycopg.Connection[Any], name: str) -> Target | None:
    """The table of this name, ``schema.table`` or one in the search path; None where there is none."""
    parts = name.split(".", 1)
    identifier = sql.Identifier(*parts)
    given = {"name": identifier.as_string(connection)}
    rows = connection.cursor(row_factory=dict_row).execute(query("sink/columns"), given).fetchall()
    if not rows:
        return None
    return Target(identifier, name, {row["name"]: Column(**row) for row in rows})


def column_type(schema: Schema) -> str:
    """The type of a column that is created for values of a schema."""
    if schema.type is Type.ARRAY and schema.values is not None:
        return f"{column_type(schema.values)}[]"
    return _NAMED.get(schema.name or "") or _TYPES[schema.type]


class Conversion(NamedTuple):
    """From a decoded value that is not null to what COPY takes for a column; one of class ``fits`` stays as it is."""

    fits: type | None
    convert: Callable[[Any], Any]


def conversion(schema: Schema | None, column: Column) -> Conversion | None:
    """The conversion of a column's values; None: they stay as they are."""
    if column.kind in {"json", "jsonb"}:
        return Conversion(str, _json)  # a source writes it as a text
    if column.kind == "hstore":
        return Conversion(str, _hstore)
    convert = None if schema is None else _adapter(schema)
    if column.kind == "bit":
        return Conversion(str if schema is None else None, _bits(column.length, convert))
    if schema is None:
        return _schemaless(column.kind)
    return None if convert is None else Conversion(None, convert)


def _adapter(schema: Schema) -> Callable[[Any], Any] | None:
    if schema.name == DATE:
        return _date
    if schema.name == TIME:
        return _time
    if schema.name == TIMESTAMP:
        return _timestamp
    if schema.type is Type.ARRAY:
        inner = None if schema.values is None else _adapter(schema.values)
        if inner is None and schema.values is not None and schema.values.type in {Type.FLOAT32, Type.FLOAT64}:
            inner = float  # NaN and the infinities are texts in JSON, and the members of an array must be alike
        return None if inner is None else _each(inner)
    if schema.type in {Type.STRUCT, Type.MAP}:
        return _json
    return java_value(schema)


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def converted(values: Any) -> Any:
        return [
            None if item is None else converted(item) if isinstance(item, list) else convert(item) for item in values
        ]

    return converted


def _hstore(found: Mapping[str, Any]) -> str:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'

    return ",".join(f"{quoted(key)}=>{'NULL' if item is None else quoted(str(item))}" for key, item in found.items())


def _bits(length: int, convert: Callable[[Any], Any] | None) -> Callable[[Any], str]:
    """From what a source makes of a bit column: a boolean, a number of these digits, or the digits as bytes."""

    def text(value: Any) -> str:
        found = value if convert is None else convert(value)
        return found.decode() if isinstance(found, bytes) else str(int(found)).zfill(length)

    return text


def _json(value: Any) -> str:
    return orjson.dumps(value, default=_number).decode()


def _number(value: Decimal) -> orjson.Fragment:
    return orjson.Fragment(str(value))


def _date(days: Any) -> str:
    return _day_text(int(days))


def _time(millis: Any) -> str:
    seconds, rest = divmod(int(millis), 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:03d}"


def _timestamp(millis: Any) -> str:
    if millis in _INFINITE:
        return _INFINITE[millis]
    days, rest = divmod(int(millis), _DAY)
    day = _day_text(days)
    return f"{day.removesuffix(' BC')} {_time(rest)}+00{' BC' if day.endswith('BC') else ''}"


_INFINITE = {9_223_372_036_825_200_000: "infinity", -9_223_372_036_832_400_000: "-infinity"}
"""Milliseconds of Postgres' own driver for Java."""
_GREGORIAN = 577_736  # ordinal of 1582-10-15


def _day_text(days: int) -> str:
    """A day since 1970 in any year, as Postgres reads it; before 1582-10-15 in the Julian calendar, as Java has it."""
    ordinal = days + 719_163
    if _GREGORIAN <= ordinal <= 3_652_059:
        return date.fromordinal(ordinal).isoformat()
    if ordinal < _GREGORIAN:
        cycles, rest = divmod(ordinal + 1, 1461)  # of 4 years, the last one of 366 days
        number = min(rest // 365, 3)
        year = cycles * 4 + number + 1
        day = date(2004 if number == 3 else 2001, 1, 1) + timedelta(rest - number * 365)
    else:
        cycles, rest = divmod(ordinal - 1, 146_097)  # of 400 years
        day = date.fromordinal(rest + 1)
        year = day.year + cycles * 400
    return f"{year:04d}-{day:%m-%d}" if year > 0 else f"{1 - year:04d}-{day:%m-%d} BC"


def _of_number(convert: Callable[[Any], str]) -> Conversion:
    """JSON without a schema has times as numbers, as JsonConverter writes them, or as texts."""
    return Conversion(str, lambda value: convert(value) if value.__class__ is int else value)


_SCHEMALESS = {
    "date": _of_number(_date),
    "time": _of_number(_time),
    "timetz": _of_number(_time),
    "timestamp": _of_number(_timestamp),
    "timestamptz": _of_number(_timestamp),
    "bytea": Conversion(None, java_value(Schema(type=Type.BYTES)) or _json),
    "text": Conversion(str, lambda value: _json(value) if isinstance(value, dict | list) else value),
    "numeric": Conversion(int, lambda value: Decimal(str(value)) if isinstance(value, float) else value),
}


def _schemaless(kind: str) -> Conversion | None:
    if kind in {"float4[]", "float8[]"}:
        return Conversion(None, _each(float))
    found = _SCHEMALESS.get(kind.removesuffix("[]"))
    return Conversion(None, _each(found.convert)) if found is not None and kind.endswith("[]") else found
