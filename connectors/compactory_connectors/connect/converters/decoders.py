"""Decoders by the converters that wrote the bytes: the values of keys and values, each with its schema.

Bytes of Avro and JSON Schema begin with the id of a schema in a registry.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache, partial
from io import BytesIO
from itertools import chain, repeat
from typing import Any, NamedTuple

import orjson

from ..record.record import RowError
from ..record.schema import DATE, DECIMAL, TIME, TIMESTAMP, Field, Schema, Type
from . import Converter
from .avro_converter import AvroConverter
from .avro_schema import without_logical_types
from .json_converter import JsonConverter
from .primitive_converters import PrimitiveConverter
from .schema_registry import Registry, RegistryConverter

__all__ = ["Decoded", "Decoder", "Enveloped", "decoded", "decoder_of", "java_value", "loads"]


class Decoded(NamedTuple):
    """A value. Without ``schema`` (None) its types are those of JSON."""

    schema: Schema | None
    value: Any


Decoder = Callable[[Sequence[bytes]], Iterable[Decoded]]
"""The function from the bytes of many records to their values. Raises RowError if one of them has no value."""


def decoded(schemas: Iterable[Schema | None], values: Iterable[Any]) -> Iterable[Decoded]:
    """Return values with their schemas, in a third of the constructor's time."""
    return map(partial(tuple.__new__, Decoded), zip(schemas, values))  # noqa: B905 - one schema may be repeated


_MAY_BE_ROUNDED = {float, dict, list}
_LONG_NUMBER = re.compile(rb"[0-9.]{17}|[0-9][eE][+-]?[0-9]{3}")


def loads(texts: Sequence[bytes]) -> list[Any]:
    """Return the values of JSON texts; numbers that a double may not hold are Decimals. Raises RowError."""
    try:
        values = list(map(orjson.loads, texts))
        fields = chain.from_iterable(value.values() for value in values if value.__class__ is dict)
        if _MAY_BE_ROUNDED.isdisjoint(map(type, fields)) or not _LONG_NUMBER.search(b" ".join(texts)):
            return values
        return [
            json.loads(text, parse_float=Decimal) if _LONG_NUMBER.search(text) else value
            for text, value in zip(texts, values, strict=True)
        ]
    except ValueError:
        raise RowError("is not JSON") from None


_PAYLOAD = b',"payload":'


class Enveloped:
    """The decoder of JSON with its schema. Records of one table begin alike, so their schema is parsed once."""

    def __init__(self) -> None:
        self._schemas: dict[bytes, Schema | None] = {}

    def __call__(self, raws: Sequence[bytes]) -> Iterable[Decoded]:
        """Return the payloads with their schemas. Raises RowError."""
        head = raws[0].partition(_PAYLOAD)[0]
        start = head + _PAYLOAD
        if head in self._schemas and all(map(bytes.startswith, raws, repeat(start))):
            payloads = [raw[len(start) : raw.rindex(b"}")] for raw in raws]
            return decoded(repeat(self._schemas[head]), loads(payloads))
        return map(self._parsed, raws)

    def _parsed(self, raw: bytes) -> Decoded:
        head, _, payload = raw.partition(_PAYLOAD)
        (document,) = loads([raw])
        if not isinstance(document, dict) or not {"schema", "payload"} <= document.keys():
            raise RowError(
                "has no schema and payload, which schemas.enable=true expects; set converter.schemas.enable=false"
            )
        schema = None if document["schema"] is None else _schema_of_json(orjson.dumps(document["schema"]))
        if payload.endswith(b"}") and orjson.dumps({"schema": document["schema"]})[:-1] == head:
            if len(self._schemas) > 16:
                self._schemas.clear()
            self._schemas[head] = schema
        return Decoded(schema, document["payload"])


@lru_cache(maxsize=256)
def _schema_of_json(text: bytes) -> Schema:
    """Return the schema that JsonConverter wrote. Raises RowError."""
    return _schema(orjson.loads(text))


def _schema(document: Any) -> Schema:
    try:
        fields = tuple(Field(item["field"], _schema(item)) for item in document.get("fields", ()))
        return Schema(
            type=Type(document["type"]),
            optional=bool(document.get("optional", False)),
            name=document.get("name"),
            version=document.get("version"),
            parameters=tuple((document.get("parameters") or {}).items()),
            fields=fields,
            keys=_schema(document["keys"]) if "keys" in document else None,
            values=_schema(values) if (values := document.get("items") or document.get("values")) else None,
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        raise RowError("its schema is none of Kafka Connect's") from None


def java_value(schema: Schema) -> Callable[[Any], Any] | None:
    """Return the function from a value of JSON to one of the schema; None if they are equal."""
    if schema.name == DECIMAL:
        scale = int(dict(schema.parameters).get("scale", "0"))
        return lambda value: _decimal_value(value, scale)
    if schema.name == DATE:
        return lambda days: days * 86_400_000
    if schema.name == TIMESTAMP:
        return lambda millis: millis * 1000
    if schema.type is Type.BYTES:
        return _bytes
    if schema.type is Type.ARRAY and schema.values is not None and (inner := java_value(schema.values)) is not None:
        return lambda values: [None if value is None else inner(value) for value in values]
    return None


_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_UNDECLARED = 127  # the scale in Connect of a numeric column without one


def _decimal_value(value: Any, scale: int) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int | float):
        return Decimal(str(value))
    number = _EXACT.scaleb(Decimal(int.from_bytes(_bytes(value), "big", signed=True)), -scale)
    return number.normalize(_EXACT) if scale == _UNDECLARED else number


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise RowError("a field of bytes is not Base64") from None


_NUMBERS = {
    "ShortConverter": (">h", Type.INT16),
    "IntegerConverter": (">i", Type.INT32),
    "LongConverter": (">q", Type.INT64),
    "FloatConverter": (">f", Type.FLOAT32),
    "DoubleConverter": (">d", Type.FLOAT64),
    "BooleanConverter": ("?", Type.BOOLEAN),
}
_TEXT = Schema(type=Type.STRING, optional=True)
_BYTES = Schema(type=Type.BYTES, optional=True)


def decoder_of(converter: Converter) -> Decoder:
    """Return the decoder of what a converter writes."""
    if isinstance(converter, RegistryConverter):
        return _RegistryDecoder(converter.registry, avro=isinstance(converter, AvroConverter))
    if isinstance(converter, JsonConverter):
        return Enveloped() if converter.schemas_enable else _decode_json
    if not isinstance(converter, PrimitiveConverter):
        return _decode_text
    if converter.name not in _NUMBERS:
        return lambda raws: decoded(repeat(_BYTES), raws)
    layout, kind = _NUMBERS[converter.name]
    return _struct_decoder(converter.name, struct.Struct(layout), Schema(type=kind, optional=True))


def _decode_json(raws: Sequence[bytes]) -> Iterable[Decoded]:
    return decoded(repeat(None), loads(raws))


def _decode_text(raws: Sequence[bytes]) -> Iterable[Decoded]:
    try:
        return decoded(repeat(_TEXT), list(map(bytes.decode, raws)))
    except UnicodeDecodeError:
        raise RowError("is not UTF-8 text") from None


def _struct_decoder(name: str, layout: struct.Struct, schema: Schema) -> Decoder:
    def decode(raws: Sequence[bytes]) -> Iterable[Decoded]:
        try:
            return decoded(repeat(schema), [layout.unpack(raw)[0] for raw in raws])
        except struct.error:
            raise RowError(f"is not what {name} writes") from None

    return decode


_MAGIC = 0
_AVRO = {"int": Type.INT32, "long": Type.INT64, "float": Type.FLOAT32, "double": Type.FLOAT64,
         "boolean": Type.BOOLEAN, "string": Type.STRING, "bytes": Type.BYTES, "enum": Type.STRING}  # fmt: skip
_LOGICAL = {"date": DATE, "time-millis": TIME, "timestamp-millis": TIMESTAMP, "decimal": DECIMAL}


class _RegistryDecoder:
    """The decoder of what AvroConverter or JsonSchemaConverter wrote."""

    def __init__(self, registry: Registry, *, avro: bool) -> None:
        self._avro = avro
        self._registry = registry
        self._schemas: dict[int, tuple[Any, Schema]] = {}

    def __call__(self, raws: Sequence[bytes]) -> Iterable[Decoded]:
        """Return the values. Raises RowError, Unreachable, ConfigError."""
        return map(self._read, raws)

    def _read(self, raw: bytes) -> Decoded:
        if len(raw) < 5 or raw[0] != _MAGIC:
            raise RowError("does not begin with the id of a schema")
        number = int.from_bytes(raw[1:5], "big")
        if number not in self._schemas:
            self._schemas[number] = self._look_up(number)
        parsed, schema = self._schemas[number]
        if not self._avro:
            return Decoded(schema, loads([raw[5:]])[0])
        from fastavro import schemaless_reader

        try:
            value = schemaless_reader(BytesIO(raw[5:]), parsed, None)
        except Exception:  # noqa: BLE001 - its errors are of many classes
            raise RowError(f"is not Avro of schema {number}") from None
        return Decoded(schema, value)

    def _look_up(self, number: int) -> tuple[Any, Schema]:
        text = self._registry.schema_text(number)
        if text is None:
            raise RowError(f"has schema {number}, which the Schema Registry lacks")
        try:
            document = json.loads(text)
            if not self._avro:
                return document, _of_json_schema(document)
            from fastavro import parse_schema

            return parse_schema(without_logical_types(document)), _of_avro(document, {})
        except (ValueError, TypeError, AttributeError, KeyError, StopIteration):
            kind = "Avro" if self._avro else "JSON Schema"
            raise RowError(f"has schema {number}, which can't be read as {kind} without references") from None


def _of_avro(document: Any, named: dict[str, Schema]) -> Schema:
    if isinstance(document, list):
        first = next((item for item in document if item != "null"), "string")
        return _of_avro(first, named).as_optional("null" in document)
    if isinstance(document, str):
        return named[document] if document in named else Schema(type=_AVRO.get(document, Type.STRING))
    kind = document["type"]
    if kind == "record":
        fields = tuple(Field(item["name"], _of_avro(item["type"], named)) for item in document["fields"])
        named[document["name"]] = schema = Schema(type=Type.STRUCT, name=document.get("connect.name"), fields=fields)
        return schema
    if kind == "array":
        return Schema(type=Type.ARRAY, values=_of_avro(document["items"], named))
    if kind == "map":
        return Schema(type=Type.MAP, keys=Schema(type=Type.STRING), values=_of_avro(document["values"], named))
    if isinstance(kind, dict | list):
        return _of_avro(kind, named)
    name = document.get("connect.name") or _LOGICAL.get(document.get("logicalType", ""))
    parameters = tuple((document.get("connect.parameters") or {}).items())
    if name == DECIMAL and not parameters:
        parameters = (("scale", str(document.get("scale", 0))),)
    return Schema(type=Type(document["connect.type"]) if "connect.type" in document else _AVRO.get(kind, Type.STRING),
                  name=name, parameters=parameters)  # fmt: skip


def _of_json_schema(document: Any) -> Schema:
    if "oneOf" in document:
        required = next(item for item in document["oneOf"] if item != {"type": "null"})
        return _of_json_schema(required).as_optional(True)
    kind, connect = document.get("type"), document.get("connect.type")
    name, parameters = document.get("title"), tuple((document.get("connect.parameters") or {}).items())
    if kind == "array":
        return Schema(type=Type.ARRAY, values=_of_json_schema(document["items"]))
    if connect == "map":
        values = _of_json_schema(document["additionalProperties"])
        return Schema(type=Type.MAP, keys=Schema(type=Type.STRING), values=values)
    if kind == "object":
        members = sorted(document.get("properties", {}).items(), key=lambda item: item[1].get("connect.index", 0))
        fields = tuple(Field(member, _of_json_schema(schema)) for member, schema in members)
        return Schema(type=Type.STRUCT, name=name, fields=fields)
    plain = {"integer": Type.INT64, "number": Type.FLOAT64, "boolean": Type.BOOLEAN}.get(kind, Type.STRING)
    names = {"float32": Type.FLOAT32, "float64": Type.FLOAT64}
    chosen = plain if connect is None else names.get(connect) or Type(connect)
    return Schema(type=chosen, name=name, parameters=parameters)
