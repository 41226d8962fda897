"""Decoders by the converters that wrote the bytes. Of Avro and JSON Schema an id names the schema in a registry."""

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
    """The decoder of what a converter writes."""
    if isinstance(converter, RegistryConverter):
        return _RegistryDecoder(converter.registry, avro=isinstance(converter, AvroConverter))
    if isinstance(converter, JsonConverter):
        return Enveloped() if converter.schemas_enable else _bare
    if not isinstance(converter, PrimitiveConverter):
        return _text
    if converter.name not in _NUMBERS:
        return lambda raws: decoded(repeat(_BYTES), raws)
    layout, kind = _NUMBERS[converter.name]
    return _number(converter.name, struct.Struct(layout), Schema(type=kind, optional=True))


def _bare(raws: Sequence[bytes]) -> Iterable[Decoded]:
    return decoded(repeat(None), loads(raws))


def _text(raws: Sequence[bytes]) -> Iterable[Decoded]:
    try:
        return decoded(repeat(_TEXT), list(map(bytes.decode, raws)))
    except UnicodeDecodeError:
        raise RowError("is not UTF-8 text") from None


def _number(name: str, layout: struct.Struct, schema: Schema) -> Decoder:
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
    """Reads what AvroConverter or JsonSchemaConverter wrote."""

    def __init__(self, registry: Registry, *, avro: bool) -> None:
        self._avro = avro
        self._registry = registry
        self._known: dict[int, tuple[Any, Schema]] = {}

    def __call__(self, raws: Sequence[bytes]) -> Iterable[Decoded]:
        """The values. Raises RowError, Unreachable, ConfigError."""
        return map(self._read, raws)

    def _read(self, raw: bytes) -> Decoded:
        if len(raw) < 5 or raw[0] != _MAGIC:
            raise RowError("does not begin with the id of a schema")
        number = int.from_bytes(raw[1:5], "big")
        if number not in self._known:
            self._known[number] = self._look_up(number)
        parsed, schema = self._known[number]
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
            found = json.loads(text)
            return (self._parsed(found), _of_avro(found, {})) if self._avro else (found, _of_json_schema(found))
        except (ValueError, TypeError, AttributeError, KeyError, StopIteration):
            kind = "Avro" if self._avro else "JSON Schema"
            raise RowError(f"has schema {number}, which can't be read as {kind} without references") from None

    def _parsed(self, found: Any) -> Any:
        from fastavro import parse_schema

        return parse_schema(without_logical_types(found))


def _of_avro(found: Any, named: dict[str, Schema]) -> Schema:
    if isinstance(found, list):
        (one, *_) = [item for item in found if item != "null"] or ["string"]
        return _of_avro(one, named).as_optional("null" in found)
    if isinstance(found, str):
        return named[found] if found in named else Schema(type=_AVRO.get(found, Type.STRING))
    kind = found["type"]
    if kind == "record":
        fields = tuple(Field(item["name"], _of_avro(item["type"], named)) for item in found["fields"])
        named[found["name"]] = schema = Schema(type=Type.STRUCT, name=found.get("connect.name"), fields=fields)
        return schema
    if kind == "array":
        return Schema(type=Type.ARRAY, values=_of_avro(found["items"], named))
    if kind == "map":
        return Schema(type=Type.MAP, keys=Schema(type=Type.STRING), values=_of_avro(found["values"], named))
    if isinstance(kind, dict | list):
        return _of_avro(kind, named)
    name = found.get("connect.name") or _LOGICAL.get(found.get("logicalType", ""))
    parameters = tuple((found.get("connect.parameters") or {}).items())
    if name == DECIMAL and not parameters:
        parameters = (("scale", str(found.get("scale", 0))),)
    return Schema(type=Type(found["connect.type"]) if "connect.type" in found else _AVRO.get(kind, Type.STRING),
                  name=name, parameters=parameters)  # fmt: skip


def _of_json_schema(found: Any) -> Schema:
    if "oneOf" in found:
        one = next(item for item in found["oneOf"] if item != {"type": "null"})
        return _of_json_schema(one).as_optional(True)
    kind, connect = found.get("type"), found.get("connect.type")
    name, parameters = found.get("title"), tuple((found.get("connect.parameters") or {}).items())
    if kind == "array":
        return Schema(type=Type.ARRAY, values=_of_json_schema(found["items"]))
    if connect == "map":
        values = _of_json_schema(found["additionalProperties"])
        return Schema(type=Type.MAP, keys=Schema(type=Type.STRING), values=values)
    if kind == "object":
        members = sorted(found.get("properties", {}).items(), key=lambda item: item[1].get("connect.index", 0))
        fields = tuple(Field(member, _of_json_schema(schema)) for member, schema in members)
        return Schema(type=Type.STRUCT, name=name, fields=fields)
    plain = {"integer": Type.INT64, "number": Type.FLOAT64, "boolean": Type.BOOLEAN}.get(kind, Type.STRING)
    names = {"float32": Type.FLOAT32, "float64": Type.FLOAT64}
    chosen = plain if connect is None else names.get(connect) or Type(connect)
    return Schema(type=chosen, name=name, parameters=parameters)
