"""Decoders by the converters that wrote the bytes."""

from __future__ import annotations

import struct
from functools import partial

from compactory_connectors.source.record.converters import ConverterSpec
from compactory_connectors.source.record.schema import Schema, Type

from ..record import RecordRefused
from .decoding import Decoded, Decoder, Enveloped, loads
from .registry_decoding import RegistryDecoder

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


def decoder_of(spec: ConverterSpec) -> Decoder:
    """The decoder of what a converter writes."""
    name = spec.class_name.rsplit(".", 1)[-1]
    if name in {"AvroConverter", "JsonSchemaConverter"}:
        return RegistryDecoder(spec.converter, avro=name == "AvroConverter")
    if name == "JsonConverter":
        return Enveloped() if spec.converter.schemas_enable else lambda raw: Decoded(None, loads(raw))  # type: ignore[attr-defined]
    if name == "StringConverter":
        return _text
    if name == "ByteArrayConverter":
        return partial(Decoded, _BYTES)
    layout, kind = _NUMBERS[name]
    return _number(name, struct.Struct(layout), Schema(type=kind, optional=True))


def _text(raw: bytes) -> Decoded:
    try:
        return Decoded(_TEXT, raw.decode())
    except UnicodeDecodeError:
        raise RecordRefused("is not UTF-8 text") from None


def _number(name: str, layout: struct.Struct, schema: Schema) -> Decoder:
    def decode(raw: bytes) -> Decoded:
        if len(raw) != layout.size:
            raise RecordRefused(f"is not what {name} writes: {len(raw)} bytes")
        return Decoded(schema, layout.unpack(raw)[0])

    return decode
