"""A table that is written: its columns, and what a value becomes in each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
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
    """One column. ``kind`` is its base type's name in pg_type, of an array that of its members with ``[]``."""

    name: str
    kind: str
    not_null: bool


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
    if schema is None:
        return _SCHEMALESS.get(column.kind)
    convert = _adapter(schema)
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
        return None if inner is None else lambda values: [None if item is None else inner(item) for item in values]
    if schema.type in {Type.STRUCT, Type.MAP}:
        return _json
    return java_value(schema)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def _date(days: Any) -> str:
    return _day_text(int(days))


def _time(millis: Any) -> str:
    seconds, rest = divmod(int(millis), 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:03d}"


def _timestamp(millis: Any) -> str:
    days, rest = divmod(int(millis), _DAY)
    day = _day_text(days)
    return f"{day.removesuffix(' BC')} {_time(rest)}+00{' BC' if day.endswith('BC') else ''}"


def _day_text(days: int) -> str:
    """A day since 1970 in any year, as Postgres reads it."""
    ordinal = days + 719_163
    if 1 <= ordinal <= 3_652_059:
        return date.fromordinal(ordinal).isoformat()
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
    "timestamp": _of_number(_timestamp),
    "timestamptz": _of_number(_timestamp),
    "bytea": Conversion(None, java_value(Schema(type=Type.BYTES)) or _json),
    "text": Conversion(str, lambda value: _json(value) if isinstance(value, dict | list) else value),
    "numeric": Conversion(int, lambda value: Decimal(str(value)) if isinstance(value, float) else value),
}
