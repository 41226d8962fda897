"""Column types of Postgres → Connect schemas, as the JDBC source connector 10.9 with pgjdbc 42.7 maps them.

Sources: ``addFieldToSchema`` of the connector's ``PostgreSqlDatabaseDialect`` and ``GenericDatabaseDialect``;
``TypeInfoCache`` of pgjdbc, which says which JDBC type a type of Postgres is. A domain counts as its base type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .catalog import Column
from .column_value import (
    decode_bit,
    decode_bits,
    decode_boolean,
    decode_byte_of_bits,
    decode_bytea,
    decode_date,
    decode_float32,
    decode_float64,
    decode_money,
    decode_time,
    decode_timestamp,
    decode_timetz,
    numeric_decoder,
)
from .record import Cell, Java, Kind
from .schema import Schema, Type

__all__ = ["column_cell", "numeric_scale"]

_Mapped = tuple[Kind, Java, Schema, Callable[[bytes], Any]]

_UNSET_SCALE = 127
"""Scale of a NUMERIC without one: ``NUMERIC_TYPE_SCALE_HIGH`` of the connector's dialect."""


def _text(raw: bytes) -> str:
    return raw.decode()


_TYPES: Mapping[str, _Mapped] = {
    "bool": (Kind.BOOLEAN, Java.BOOLEAN, Schema(type=Type.BOOLEAN), decode_boolean),
    "int2": (Kind.INTEGER, Java.SHORT, Schema(type=Type.INT16), int),
    "int4": (Kind.INTEGER, Java.INTEGER, Schema(type=Type.INT32), int),
    "int8": (Kind.INTEGER, Java.LONG, Schema(type=Type.INT64), int),
    "oid": (Kind.INTEGER, Java.LONG, Schema(type=Type.INT64), int),
    "float4": (Kind.FLOAT32, Java.FLOAT, Schema(type=Type.FLOAT32), decode_float32),
    "float8": (Kind.FLOAT64, Java.DOUBLE, Schema(type=Type.FLOAT64), decode_float64),
    "money": (Kind.MONEY, Java.DOUBLE, Schema(type=Type.FLOAT64), decode_money),
    "bytea": (Kind.BYTEA, Java.BYTES, Schema(type=Type.BYTES), decode_bytea),
    "date": (Kind.DATE, Java.SQL_DATE, Schema.date(), decode_date),
    "time": (Kind.TIME, Java.SQL_TIME, Schema.time(), decode_time),
    "timetz": (Kind.TIMETZ, Java.SQL_TIME, Schema.time(), decode_timetz),
    "timestamp": (Kind.TIMESTAMP, Java.SQL_TIMESTAMP, Schema.timestamp(), decode_timestamp),
    "timestamptz": (Kind.TIMESTAMPTZ, Java.SQL_TIMESTAMP, Schema.timestamp(), decode_timestamp),
}

_STRING: _Mapped = (Kind.TEXT, Java.STRING, Schema(type=Type.STRING), _text)
_STRINGS = {"text", "varchar", "bpchar", "char", "name", "uuid", "json", "jsonb", "xml"}


def column_cell(column: Column) -> Cell | None:
    """The value of ``column`` as the connector reads it, or None for a type that it leaves out."""
    mapped = _mapped(column)
    if mapped is None:
        return None
    kind, java, schema, decode = mapped
    schema = schema.as_optional(not column.not_null)
    return Cell(column=column.name, kind=kind, schema=schema, java=java, decode=decode)


def _mapped(column: Column) -> _Mapped | None:
    if column.type_kind == "e":
        return _STRING
    if column.type_schema != "pg_catalog":
        return None
    if column.type in _STRINGS:
        return _STRING
    if column.type == "numeric":
        scale, precision = numeric_scale(column.typmod)
        return Kind.NUMERIC, Java.DECIMAL, Schema.decimal(scale, precision), numeric_decoder(scale)
    if column.type == "bit":
        return _bits(column.typmod)
    return _TYPES.get(column.type)


def numeric_scale(typmod: int) -> tuple[int, int]:
    """Scale and precision of a NUMERIC column, as pgjdbc reads its typmod."""
    if typmod == -1:
        return _UNSET_SCALE, 0
    return (typmod - 4) & 0xFFFF, ((typmod - 4) >> 16) & 0xFFFF


def _bits(length: int) -> _Mapped:
    """``bit(n)``: a boolean, a byte or bytes, by its length."""
    if length <= 1:
        return Kind.BITS, Java.BOOLEAN, Schema(type=Type.BOOLEAN), decode_bit
    if length <= 8:
        return Kind.BITS, Java.BYTE, Schema(type=Type.INT8), decode_byte_of_bits
    return Kind.BITS, Java.BYTES, Schema(type=Type.BYTES), decode_bits
