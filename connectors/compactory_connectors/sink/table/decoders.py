"""Decoders by the class names of the converters that wrote the bytes."""

from __future__ import annotations

from collections.abc import Mapping

from compactory_connectors.source.record.converters import read_converter
from compactory_connectors.source.record.schema import Schema, Type

from .decoding import Decoded, Decoder, Enveloped, number_decoder, plain_json, string_value
from .registry_decoding import RegistryDecoder

__all__ = ["read_decoder"]

_CONFLUENT = {
    "io.confluent.connect.avro.AvroConverter": "avro",
    "io.confluent.connect.json.JsonSchemaConverter": "json",
}


def read_decoder(class_name: str, options: Mapping[str, str]) -> tuple[Decoder | None, list[str]]:
    """The decoder of a converter's class and options, and every problem, without the key's name."""
    spec, problems = read_converter(class_name, options)
    if spec is None:
        return None, problems
    short = class_name.rsplit(".", 1)[-1]
    if class_name in _CONFLUENT:
        return RegistryDecoder(_CONFLUENT[class_name], spec.converter), []
    if short == "JsonConverter":
        enabled = options.get("schemas.enable", "true").lower() == "true"
        return (Enveloped() if enabled else plain_json), []
    if short == "StringConverter":
        return string_value, []
    if short == "ByteArrayConverter":
        return (lambda raw, _topic, _half: Decoded(Schema(type=Type.BYTES, optional=True), raw)), []
    return number_decoder(short), []
