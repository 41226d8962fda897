"""Column types of Postgres → Connect schemas, as the JDBC source connector 10.9 with pgjdbc 42.7 maps them.

Sources: ``addFieldToSchema`` of the connector's ``PostgreSqlDatabaseDialect`` and ``GenericDatabaseDialect``;
``TypeInfoCache`` of pgjdbc, which says which JDBC type a type of Postgres is. A domain counts as its base type. Types
that the connector leaves out are in ``column_node``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compactory_connectors.connect.record.column_value import (
    decode_byte_of_bits,
    decode_bytea,
    decode_date,
    decode_float32,
    decode_money,
    decode_time,
    decode_timestamp,
    decode_timetz,
    integer_decoder,
    numeric_decoder,
)
from compactory_connectors.connect.record.record import Cell, Kind
from compactory_connectors.connect.record.row_value import java_of
from compactory_connectors.connect.record.schema import Schema, Type

from ..config.column_options import ColumnOptions, Granularity, NumericMapping
from ..postgres.catalog import Column, Shape
from .column_time import granular, time_decoder, timestamp_decoder

__all__ = ["STRING", "Mapped", "column_cell", "connect_type", "numeric_scale", "truncates"]

Mapped = tuple[Kind, Schema, Callable[[bytes], Any]]

_DEFAULT = ColumnOptions()
_UNSET_SCALE = 127
"""Scale of a NUMERIC without one: ``NUMERIC_TYPE_SCALE_HIGH`` of the connector's dialect."""
_LONG_DIGITS = 18
"""Most digits that become an integer: ``MAX_INTEGER_TYPE_PRECISION``."""


def _text(raw: bytes) -> str:
    return raw.decode()


_TYPES: Mapping[str, Mapped] = {
    "bool": (Kind.BOOLEAN, Schema(type=Type.BOOLEAN), lambda raw: raw == b"t"),
    "int2": (Kind.INTEGER, Schema(type=Type.INT16), int),
    "int4": (Kind.INTEGER, Schema(type=Type.INT32), int),
    "int8": (Kind.INTEGER, Schema(type=Type.INT64), int),
    "oid": (Kind.INTEGER, Schema(type=Type.INT64), int),
    "float4": (Kind.FLOAT32, Schema(type=Type.FLOAT32), decode_float32),
    "float8": (Kind.FLOAT64, Schema(type=Type.FLOAT64), float),
    "money": (Kind.CONVERTED, Schema(type=Type.FLOAT64), decode_money),
    "bytea": (Kind.BYTEA, Schema(type=Type.BYTES), decode_bytea),
    "date": (Kind.DATE, Schema.date(), decode_date),
    "time": (Kind.TIME, Schema.time(), decode_time),
    "timetz": (Kind.CONVERTED, Schema.time(), decode_timetz),
    "timestamp": (Kind.TIMESTAMP, Schema.timestamp(), decode_timestamp),
    "timestamptz": (Kind.TIMESTAMPTZ, Schema.timestamp(), decode_timestamp),
}

STRING: Mapped = (Kind.TEXT, Schema(type=Type.STRING), _text)
"""Text as Postgres writes it."""

_STRINGS = {"text", "varchar", "bpchar", "char", "name", "uuid", "json", "jsonb", "xml"}


def column_cell(column: Column, options: ColumnOptions = _DEFAULT) -> Cell | None:
    """The value of ``column`` as the connector reads it, or None for a type that it leaves out."""
    mapped = connect_type(column, options)
    if mapped is None:
        return None
    kind, schema, decode = mapped
    optional = schema.as_optional(not column.not_null)
    return Cell(column=column.name, kind=kind, schema=optional, java=java_of(schema), decode=decode)


def connect_type(shape: Shape, options: ColumnOptions) -> Mapped | None:
    """The value of a type as the connector reads it, or None for a type that it leaves out."""
    if shape.type_kind == "e":
        return STRING
    if shape.type_schema != "pg_catalog":
        return None
    if shape.type in _STRINGS:
        return STRING
    if shape.type == "numeric":
        return _numeric(shape.typmod, options.numeric_mapping)
    if shape.type == "bit":
        return _bits(shape.typmod)
    mapped = _TYPES.get(shape.type)
    return mapped if mapped is None or options == _DEFAULT else _with_options(shape.type, mapped, options)


def numeric_scale(typmod: int) -> tuple[int, int]:
    """Scale and precision of a NUMERIC column, as pgjdbc reads its typmod: a negative scale wraps to 11 bits."""
    if typmod == -1:
        return _UNSET_SCALE, 0
    return (typmod - 4) & 0xFFFF, ((typmod - 4) >> 16) & 0xFFFF


def truncates(column: Column, options: ColumnOptions) -> bool:
    """Whether ``numeric.mapping`` cuts off what such a column can hold.

    pgjdbc says precision 0 and scale 0 of a bare NUMERIC, for which the connector takes the smallest integer.
    """
    bare = column.type == "numeric" and column.typmod == -1
    return bare and options.numeric_mapping is not NumericMapping.NONE


def _numeric(typmod: int, mapping: NumericMapping) -> Mapped:
    scale, precision = numeric_scale(typmod)
    declared = 0 if typmod == -1 else scale
    if mapping is not NumericMapping.NONE:
        small = precision <= _LONG_DIGITS
        if declared == 0 and small:
            return _integer(precision)
        eager = mapping is NumericMapping.BEST_FIT_EAGER_DOUBLE
        if declared > 0 and (eager or (small and mapping is NumericMapping.BEST_FIT)):
            return Kind.CONVERTED, Schema(type=Type.FLOAT64), float
    return Kind.NUMERIC, Schema.decimal(scale, precision), numeric_decoder(scale)


_INTEGERS = ((9, Type.INT64, 64), (4, Type.INT32, 32), (2, Type.INT16, 16))


def _integer(precision: int) -> Mapped:
    """``integerSchema``: the smallest integer that holds every number of so many digits."""
    for digits, kind, bits in _INTEGERS:
        if precision > digits:
            return Kind.CONVERTED, Schema(type=kind), integer_decoder(bits)
    return Kind.CONVERTED, Schema(type=Type.INT8), integer_decoder(8)


def _with_options(name: str, mapped: Mapped, options: ColumnOptions) -> Mapped:
    """Times as the options have them; the short cuts of a kind hold only while they change nothing."""
    _, schema, decode = mapped
    if name == "time":
        read = time_decoder(options)
    elif name in {"timestamp", "timestamptz"}:
        read = timestamp_decoder(options, zoned=name == "timestamptz")
        if options.granularity is not Granularity.CONNECT_LOGICAL:
            schema, convert = granular(options)
            return Kind.CONVERTED, schema, lambda raw: convert(read(raw))
    else:
        return mapped
    return mapped if read is decode else (Kind.CONVERTED, schema, read)


def _bits(length: int) -> Mapped:
    """``bit(n)``: a boolean, a byte, or the text as bytes (pgjdbc's ``getBytes``), by its length."""
    if length <= 1:
        return Kind.CONVERTED, Schema(type=Type.BOOLEAN), lambda raw: raw == b"1"
    if length <= 8:
        return Kind.CONVERTED, Schema(type=Type.INT8), decode_byte_of_bits
    return Kind.CONVERTED, Schema(type=Type.BYTES), bytes
