"""Decoders by the converters that wrote the bytes. Those of Avro and JSON Schema have the id of a schema."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import repeat
from typing import Any

from ..record.record import RowError
from ..record.schema import DATE, DECIMAL, TIME, TIMESTAMP, Field, Schema, Type
from . import Converter
from .avro_converter import AvroConverter
from .avro_schema import without_logical_types
from .decoding import Decoded, Decoder, Enveloped, decoded, loads
from .json_converter import JsonConverter
from .primitive_converters import PrimitiveConverter
from .schema_registry import Registry, RegistryConverter

__all__ = ["decoder_of"]

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
