"""Column types of Postgres → Connect schemas, as the JDBC source connector 10.9 with pgjdbc 42.7 maps them.

Sources: ``addFieldToSchema`` of the connector's ``PostgreSqlDatabaseDialect`` and ``GenericDatabaseDialect``;
``TypeInfoCache`` of pgjdbc, which says which JDBC type a type of Postgres is. A domain counts as its base type. With
``compactory.types=all`` the types that the connector leaves out are the texts that Postgres writes. Arrays, composites
and hstore are JSON, for which ``RowPlan.json_columns`` has Postgres convert them.

Times follow ``DateTimeUtils`` of the connector, oddities included: the units of ``micros_long`` and ``nanos_long`` are
counted from the second towards 1970, so that times before 1970 with a fraction come out a second late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from compactory_connectors.connect.javatext.java_calendar import proleptic_date
from compactory_connectors.connect.javatext.java_number import clamped, divided, wrapped
from compactory_connectors.connect.javatext.java_zone import JavaZone, java_zone
from compactory_connectors.connect.record.column_value import (
    INFINITIES,
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
from compactory_connectors.connect.record.record import Cell, Kind, RowError
from compactory_connectors.connect.record.row_value import java_of
from compactory_connectors.connect.record.schema import Schema, Type

from ..config.connector import ColumnOptions, ColumnTypes, Granularity, NumericMapping
from ..postgres.catalog import Column

__all__ = ["column_cell", "column_warnings", "numeric_scale"]

Mapped = tuple[Kind, Schema, Callable[[bytes], Any]]

_DEFAULT = ColumnOptions()
_UNSET_SCALE = 127
"""Scale of a NUMERIC without one: ``NUMERIC_TYPE_SCALE_HIGH`` of the connector's dialect."""
_LONG_DIGITS = 18
"""Most digits that become an integer: ``MAX_INTEGER_TYPE_PRECISION``."""

_DAY = 86_400
_MICROS = 1_000_000
_NANOS = 1_000_000_000

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

_STRING: Mapped = (Kind.TEXT, Schema(type=Type.STRING), bytes.decode)
"""Text as Postgres writes it."""

_STRINGS = {"text", "varchar", "bpchar", "char", "name", "uuid", "json", "jsonb", "xml"}


def column_cell(column: Column, options: ColumnOptions = _DEFAULT) -> Cell | None:
    """Return the value of ``column``, or None for a type that is left out."""
    mapped = _connector_type(column, options)
    if mapped is None and options.types is ColumnTypes.ALL:
        mapped = (Kind.JSON if column.has_parts else Kind.TEXT, Schema(type=Type.STRING), bytes.decode)
    if mapped is None:
        return None
    kind, schema, decode = mapped
    optional = schema.as_optional(not column.not_null)
    return Cell(column=column.name, kind=kind, schema=optional, java=java_of(schema), decode=decode)


def column_warnings(table: object, column: Column, options: ColumnOptions) -> Iterator[str]:
    """Yield warnings to an operator: the column is left out, or its values are cut off."""
    place = f"table {table}: column {column.name}"
    # pgjdbc says precision 0 and scale 0 of a bare NUMERIC, for which the connector takes the smallest integer
    is_bare = column.type == "numeric" and column.typmod == -1
    if is_bare and options.numeric_mapping is not NumericMapping.NONE:
        yield (
            f"{place} is NUMERIC without precision, of which numeric.mapping={options.numeric_mapping.value} makes"
            " a number of 8 bits: fractions are cut off, and above 127 the connector fails; declare a precision"
        )
    if column_cell(column, options) is None:
        yield f"{place} of type {column.type} is left out: not supported; compactory.types=all keeps it"


def _connector_type(column: Column, options: ColumnOptions) -> Mapped | None:
    """Return the value of a type as the connector reads it, or None for a type that it leaves out."""
    if column.type_kind == "e":
        return _STRING
    if column.type_schema != "pg_catalog":
        return None
    if column.type in _STRINGS:
        return _STRING
    if column.type == "numeric":
        return _numeric(column.typmod, options.numeric_mapping)
    if column.type == "bit":
        return _bits(column.typmod)
    mapped = _TYPES.get(column.type)
    return mapped if mapped is None or options == _DEFAULT else _with_options(column.type, mapped, options)


def numeric_scale(typmod: int) -> tuple[int, int]:
    """Return scale and precision of a NUMERIC column, as pgjdbc reads its typmod: a negative scale wraps to 11 bits."""
    if typmod == -1:
        return _UNSET_SCALE, 0
    return (typmod - 4) & 0xFFFF, ((typmod - 4) >> 16) & 0xFFFF


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
    """Return the smallest integer that holds every number of so many digits."""
    for digits, kind, bits in _INTEGERS:
        if precision > digits:
            return Kind.CONVERTED, Schema(type=kind), integer_decoder(bits)
    return Kind.CONVERTED, Schema(type=Type.INT8), integer_decoder(8)


def _with_options(name: str, mapped: Mapped, options: ColumnOptions) -> Mapped:
    """Return a time as the options have it. The short cuts of a kind hold only while they change nothing."""
    _, schema, decode = mapped
    if name == "time":
        read = _time_decoder(options)
    elif name in {"timestamp", "timestamptz"}:
        read = _timestamp_decoder(options, zoned=name == "timestamptz")
        if options.granularity is not Granularity.CONNECT_LOGICAL:
            schema, convert = _granular(options)
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


def _time_decoder(options: ColumnOptions) -> Callable[[bytes], int]:
    """Return the decoder to milliseconds since midnight in UTC, of a time on the clocks of the zone on 1970-01-01."""
    zone = java_zone(options.zone)
    if zone is None:
        return decode_time

    def decode(raw: bytes) -> int:
        millis = decode_time(raw)
        return millis - zone.wall_offset(millis // 1000) * 1000

    return decode


def _timestamp_decoder(options: ColumnOptions, *, zoned: bool) -> Callable[[bytes], int]:
    """Return the decoder to microseconds since the epoch. ``zoned``: the text is in UTC."""
    zone = java_zone(options.zone)
    return decode_timestamp if zoned or zone is None else _local_decoder(zone)


def _local_decoder(zone: JavaZone) -> Callable[[bytes], int]:
    def decode(raw: bytes) -> int:
        micros = decode_timestamp(raw)
        return micros if raw in INFINITIES else micros - _offset(zone.wall_offset, micros // _MICROS) * _MICROS

    return decode


def _offset(offset_at: Callable[[int], int], seconds: int) -> int:
    try:
        return offset_at(seconds)
    except ValueError as error:
        raise RowError(f"the timestamp {error}") from None


def _granular(options: ColumnOptions) -> tuple[Schema, Callable[[int], Any]]:
    """Return the schema and value that microseconds become under a granularity that is not the default."""
    granularity = options.granularity
    if granularity in _NUMBERS:
        number = _NUMBERS[granularity]
        if granularity.value.endswith("long"):
            return Schema(type=Type.INT64), number
        return Schema(type=Type.STRING), lambda micros: str(number(micros))
    zeros = "" if granularity is Granularity.MICROS_ISO_DATETIME_STRING else "000"
    return Schema(type=Type.STRING), _iso_writer(java_zone(options.zone), zeros)


def _counted(unit: int, *, bounded: bool = True) -> Callable[[int], int]:
    """Return the counter of units of so many in a second. ``bounded``: as ``TimeUnit`` converts and Java adds longs."""

    def count(micros: int) -> int:
        whole, fraction = divided(micros // 1000, 1000) * unit, micros % _MICROS * (unit // _MICROS)
        return wrapped(clamped(whole) + fraction, 64) if bounded else whole + fraction

    return count


_NUMBERS: Mapping[Granularity, Callable[[int], int]] = {
    Granularity.MICROS_LONG: _counted(_MICROS),
    Granularity.MICROS_STRING: _counted(_MICROS),
    Granularity.NANOS_LONG: _counted(_NANOS),
    Granularity.NANOS_STRING: _counted(_NANOS, bounded=False),
}


def _iso_writer(zone: JavaZone | None, zeros: str) -> Callable[[int], str]:
    """Return the writer of ISO texts as ``java.time`` has them: years of an era, with a plus above 9999."""

    def text(micros: int) -> str:
        seconds, fraction = divmod(micros, _MICROS)
        days, second = divmod(seconds + (_offset(zone.offset, seconds) if zone else 0), _DAY)
        year, month, day = proleptic_date(days)
        era = year if year > 0 else 1 - year
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        date = f"{'+' if era > 9999 else ''}{era:04d}-{month:02d}-{day:02d}"
        return f"{date}T{clock}.{fraction:06d}{zeros}"

    return text
