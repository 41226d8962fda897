"""One Connect value → Avro's binary encoding, under the schema that ``avro_schema`` makes of the same Connect schema.

Source: the Avro specification, "Binary Encoding", and ``AvroData.fromConnectData``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..record import Java, java_of
from ..schema import DATE, DECIMAL, TIME, TIMESTAMP, Schema, Type
from .json_value import date_number, decimal_bytes, time_number

__all__ = ["Encode", "avro_long", "encoder", "nullable"]

Encode: TypeAlias = Callable[[Any], bytes]

_TIMES = {Java.SQL_DATE, Java.SQL_TIME, Java.SQL_TIMESTAMP, Java.DATE}
_INT64 = (1 << 64) - 1
_SMALL = tuple(
    bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7]) for number in range(1 << 12)
)
"""The encodings of small numbers, after zigzag."""


def avro_long(number: int) -> bytes:
    """An int or long: zigzag, then seven bits a byte, least significant first."""
    number = number << 1 if number >= 0 else ~(number << 1)
    if number < 1 << 12:
        return _SMALL[number]
    if number > _INT64:
        number &= _INT64
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _counted(value: bytes) -> bytes:
    return avro_long(len(value)) + value


def encoder(schema: Schema, java: Java) -> Encode:
    """Encodes values of ``java`` that are not null. Raises ValueError for a class that does not go with the schema."""
    if schema.name == DECIMAL and java is Java.DECIMAL:
        unscaled = decimal_bytes(schema)
        return lambda value: _counted(unscaled(value))
    if schema.name in {DATE, TIME, TIMESTAMP} and java in _TIMES:
        return _time(schema.name, in_micros=java is Java.SQL_TIMESTAMP)
    if java_of(schema) is not java:
        raise ValueError(f"can't write {java.value} under a schema of type {schema.type.name}; Connect refuses it too")
    if schema.type is Type.ARRAY:
        return _array(schema)
    if schema.type is Type.MAP:
        return _map(schema)
    if schema.type is Type.STRUCT:
        return _struct(schema)
    return _PLAIN[java]


def _time(name: str, *, in_micros: bool) -> Encode:
    number: Callable[[int], int] = {DATE: date_number, TIME: time_number}.get(name, int)
    if in_micros:
        return lambda micros: avro_long(number(micros // 1000))
    return lambda millis: avro_long(number(millis))


def nullable(schema: Schema, encode: Encode) -> Encode:
    """``encode``, inside of a union with null where ``schema`` is optional: also for None."""
    if not schema.optional:
        return encode
    return lambda value: b"\0" if value is None else b"\2" + encode(value)


def _part(schema: Schema | None) -> Encode:
    assert schema is not None
    return nullable(schema, encoder(schema, java_of(schema)))


def _array(schema: Schema) -> Encode:
    encode = _part(schema.values)
    return lambda values: avro_long(len(values)) + b"".join(map(encode, values)) + b"\0" if values else b"\0"


def _map(schema: Schema) -> Encode:
    key, value = _part(schema.keys), _part(schema.values)

    def encode(items: Mapping[Any, Any]) -> bytes:
        if not items:
            return b"\0"
        return avro_long(len(items)) + b"".join(key(name) + value(item) for name, item in items.items()) + b"\0"

    return encode


def _struct(schema: Schema) -> Encode:
    parts = [_part(item.schema) for item in schema.fields]

    def encode(values: Sequence[Any]) -> bytes:
        return b"".join(part(value) for part, value in zip(parts, values, strict=True))

    return encode


_PLAIN: Mapping[Java, Encode] = {
    Java.BOOLEAN: lambda value: b"\1" if value else b"\0",
    Java.BYTE: avro_long,
    Java.SHORT: avro_long,
    Java.INTEGER: avro_long,
    Java.LONG: avro_long,
    Java.FLOAT: struct.Struct("<f").pack,
    Java.DOUBLE: struct.Struct("<d").pack,
    Java.STRING: lambda value: _counted(value.encode()),
    Java.BYTES: _counted,
}
