"""Converters by their Java class names: they turn keys and values into bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..setting import nearest_class, read_options
from .avro_converter import AvroConverter
from .converter import Converter, Half, Render
from .json_converter import JsonConverter
from .json_schema_converter import JsonSchemaConverter
from .primitive_converters import PRIMITIVES
from .string_converter import StringConverter

__all__ = ["REGISTRY", "Converter", "Half", "Render", "read_converter"]

REGISTRY: Mapping[str, Any] = {
    "io.confluent.connect.avro.AvroConverter": AvroConverter,
    "io.confluent.connect.json.JsonSchemaConverter": JsonSchemaConverter,
    "org.apache.kafka.connect.json.JsonConverter": JsonConverter,
    "org.apache.kafka.connect.storage.StringConverter": StringConverter,
    **PRIMITIVES,
}

_REFUSED = {"io.confluent.connect.protobuf.ProtobufConverter": "is not supported; use AvroConverter or JsonConverter"}


def read_converter(class_name: str, settings: Mapping[str, str]) -> tuple[Converter | None, list[str]]:
    """Return the converter of a class with its options (prefix removed), and all problems, without the key's name."""
    kind = REGISTRY.get(class_name)
    if kind is None:
        if class_name in _REFUSED:
            return None, [f": {class_name} {_REFUSED[class_name]}"]
        return None, [f": {class_name} is not a converter that Compactory knows{nearest_class(class_name, REGISTRY)}"]
    values, problems = read_options(class_name, kind.options, settings)
    if problems:
        return None, [f".{problem}" for problem in problems]
    try:
        return kind if isinstance(kind, Converter) else kind.read(values), []
    except ValueError as error:
        return None, [f".{error}"]
