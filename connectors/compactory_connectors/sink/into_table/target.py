"""The table of a sink: its columns, and the texts of values for COPY."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from compactory_connectors.connect.converters.decoders import java_value
from compactory_connectors.connect.javatext.java_calendar import MILLIS_PER_DAY, civil_date
from compactory_connectors.connect.record.column_value import INFINITIES
from compactory_connectors.connect.record.schema import DATE, DECIMAL, TIME, TIMESTAMP, Schema, Type
from compactory_sql import query
from compactory_sql.naming import split_name

__all__ = ["Column", "Target", "Texts", "column_type", "is_identifier", "read_target", "table_identifier", "texts_of"]

_TYPES = {
    Type.BOOLEAN: "boolean", Type.INT8: "smallint", Type.INT16: "smallint", Type.INT32: "integer",
    Type.INT64: "bigint", Type.FLOAT32: "real", Type.FLOAT64: "double precision", Type.STRING: "text",
    Type.BYTES: "bytea", Type.MAP: "jsonb", Type.STRUCT: "jsonb",
}  # fmt: skip
_NAMED = {DATE: "date", TIME: "time", TIMESTAMP: "timestamp", DECIMAL: "numeric"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. ``kind`` is the name of its base type in pg_type; of an array that of its members with ``[]``.

    ``length`` counts the digits of a bit column. ``generated``: by the server.
    """

    name: str
    kind: str
    length: int
    generated: Literal["", "stored", "identity"]


@dataclass(frozen=True, slots=True)
class Target:
    """A table and its current columns."""

    name: sql.Identifier
    text: str
    columns: dict[str, Column]


def table_identifier(name: str) -> sql.Identifier:
    """Return the identifier of ``table``, ``schema.table`` or ``database.schema.table``; parts may be quoted.

    Raises ValueError, which tells the problem.
    """
    parts = [part for part, _ in split_name(name) or ()]
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"{name!r} is not the name of a table; write table, schema.table or database.schema.table")
    if not all(map(is_identifier, parts)):
        raise ValueError(f"{name!r} is not the name of a table; a name has 1 to 63 bytes and no NUL")
    return sql.Identifier(*parts)


def is_identifier(name: str) -> bool:
    """Return True if Postgres keeps this name as it is: it has 1 to 63 bytes and no NUL."""
    return 1 <= len(name.encode(errors="replace")) <= 63 and "\0" not in name


def read_target(connection: psycopg.Connection[Any], identifier: sql.Identifier, name: str) -> Target | None:
    """Return the table, or None if there is none; without a schema it is looked up in the search path."""
    parameters = {"name": identifier.as_string(connection)}
    rows = connection.cursor(row_factory=dict_row).execute(query("sink/columns"), parameters).fetchall()
    return Target(identifier, name, {row["name"]: Column(**row) for row in rows}) if rows else None


def column_type(schema: Schema) -> str:
    """Return the type of a new column for values of a schema."""
    if schema.type is Type.ARRAY and schema.values is not None:
        return f"{column_type(schema.values)}[]"
    return _NAMED.get(schema.name or "") or _TYPES[schema.type]


_Text: TypeAlias = Callable[[Any], str]


class Texts(NamedTuple):
    """Converts values that are not null to texts. Values of class ``plain`` need no conversion for COPY."""

    plain: type | None
    text: _Text


def texts_of(schema: Schema | None, column: Column) -> Texts:
    """Return the conversion of a column's values: by the column if JSON has no such type, else by the schema."""
    if column.kind in {"json", "jsonb"}:
        return Texts(str, lambda value: value if isinstance(value, str) else _json(value))  # a source writes a text
    if column.kind == "hstore":
        return Texts(None, lambda value: value if isinstance(value := _parsed(value, "{"), str) else _hstore(value))
    if column.kind == "bit":
        return Texts(str if schema is None else None, _bits(column.length, schema))
    is_text = schema is not None and schema.type is Type.STRING
    if schema is not None and not (is_text and column.kind.endswith("[]")):
        return _by_schema(schema)
    kind = column.kind.removesuffix("[]")
    texts = _BY_KIND.get(kind, Texts(str, _value_text))
    if kind == column.kind:
        return texts
    array = _array(_json if kind in {"json", "jsonb"} else texts.text)
    return Texts(None, lambda value: value if isinstance(value := _parsed(value, "["), str) else array(value))


_decode_json = msgspec.json.Decoder(float_hook=Decimal).decode


def _parsed(value: Any, opening: str) -> Any:
    """Return the list or object of a text that holds JSON, as sources write arrays and hstore under a schema."""
    if isinstance(value, str) and value.startswith(opening):
        with suppress(msgspec.DecodeError):
            return _decode_json(value)
    return value


def _by_schema(schema: Schema) -> Texts:
    if schema.name in _TIMES:
        return Texts(None, _TIMES[schema.name])
    if schema.type is Type.ARRAY:
        while schema.values is not None and schema.keys is None:  # a literal's dimensions are those of its lists
            schema = schema.values
        return Texts(None, _array(_by_schema(schema).text))
    if schema.type in {Type.STRUCT, Type.MAP}:
        return Texts(None, _json)
    convert = java_value(schema)
    if convert is not None:
        return Texts(None, lambda value: _value_text(convert(value)))
    return Texts(_PLAIN.get(schema.type), _value_text)


_PLAIN = {Type.STRING: str, Type.FLOAT64: float, Type.FLOAT32: float} | dict.fromkeys(
    (Type.INT8, Type.INT16, Type.INT32, Type.INT64), int
)


def _value_text(value: Any) -> str:
    """Return the text of a value without a schema: lists and objects as JSON, bytes for bytea."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"
    return _json(value) if isinstance(value, list | dict) else str(value)


def _array(text: _Text) -> _Text:
    """Return the conversion of a list to an array's literal."""

    def member(value: Any) -> str:
        if value is None:
            return "NULL"
        return literal(value) if isinstance(value, list) else _quoted(text(value))

    def literal(values: Any) -> str:
        if not isinstance(values, list):
            raise TypeError
        return f"{{{','.join(map(member, values))}}}"

    return literal


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def _hstore(value: Mapping[str, Any]) -> str:
    items = ((_quoted(key), "NULL" if item is None else _quoted(str(item))) for key, item in value.items())
    return ",".join(f"{key}=>{item}" for key, item in items)


def _bits(length: int, schema: Schema | None) -> _Text:
    """Return the conversion of a source's bit column: a boolean, a number with these digits, or digits as bytes."""
    convert = None if schema is None else java_value(schema)

    def text(value: Any) -> str:
        bits = value if convert is None else convert(value)
        return bits.decode() if isinstance(bits, bytes) else str(int(bits)).zfill(length)

    return text


_encode_json = msgspec.json.Encoder(decimal_format="number").encode  # whole numbers of any size, unlike orjson


def _json(value: Any) -> str:
    return _encode_json(value).decode()


@lru_cache(maxsize=4096)
def _date(days: int) -> str:
    """Return a day since 1970 for Postgres. Before 1582-10-15 in the Julian calendar, as Java does."""
    year, month, day = civil_date(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}{'' if year > 0 else ' BC'}"


def _time(millis: int) -> str:
    seconds, fraction = divmod(millis, 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:03d}"


_INFINITE = {millis: name.decode() for name, millis in INFINITIES.items()}


def _timestamp(millis: int) -> str:
    if millis in _INFINITE:
        return _INFINITE[millis]
    days, millis_of_day = divmod(millis, MILLIS_PER_DAY)
    day = _date(days)
    return f"{day.removesuffix(' BC')} {_time(millis_of_day)}+00{' BC' if day.endswith('BC') else ''}"


_TIMES: Mapping[str | None, _Text] = {DATE: _date, TIME: _time, TIMESTAMP: _timestamp}


def _of_number(text: _Text) -> Texts:
    """Return the conversion of times without a schema: numbers, as JsonConverter writes them, or texts."""
    return Texts(str, lambda value: value if isinstance(value, str) else text(value))


_NUMBER = re.compile(r"\s*[+-]?(\d|\.\d|nan|inf)", re.IGNORECASE)


def _number_text(value: Any) -> str:
    """Return the text of a number. Raises TypeError for another text, before Postgres refuses the batch."""
    if value.__class__ in {int, float, Decimal} or (isinstance(value, str) and _NUMBER.match(value)):
        return str(value)
    raise TypeError


_BY_KIND = {
    "date": _of_number(_date),
    "time": _of_number(_time),
    "timetz": _of_number(_time),
    "timestamp": _of_number(_timestamp),
    "timestamptz": _of_number(_timestamp),
    "bytea": _by_schema(Schema(type=Type.BYTES)),
    "bool": Texts(bool, _value_text),
    **dict.fromkeys(("int2", "int4", "int8"), Texts(int, _number_text)),
    **dict.fromkeys(("float4", "float8", "numeric"), Texts(float, _number_text)),
}
