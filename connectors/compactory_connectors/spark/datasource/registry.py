"""Values of Avro and JSON Schema, by the schemas of a registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from compactory.errors import ConfigError
from compactory_connectors.connect.converters import read_converter
from compactory_connectors.connect.converters.decoders import decoder_of, java_value
from compactory_connectors.connect.converters.schema_registry import RegistryConverter
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.connect.record.schema import DECIMAL, Schema, Type

from ..typed.values import Document, ReadDocument
from .options import ReadOptions

__all__ = ["registry_reader", "schema_of_value", "with_registry"]

_CONVERTERS: Final = {
    "avro": "io.confluent.connect.avro.AvroConverter",
    "json-schema": "io.confluent.connect.json.JsonSchemaConverter",
}


def with_registry(options: ReadOptions) -> ReadOptions:
    """Return the options with the converter that wrote the values. Raises ConfigError for properties of a registry."""
    if options.value_format == "json":
        return options
    converter, problems = read_converter(_CONVERTERS[options.value_format], options.registry)
    if problems:
        raise ConfigError(f"option {problem.removeprefix('.').removeprefix(': ')}" for problem in problems)
    assert isinstance(converter, RegistryConverter)
    return replace(options, converter=converter)


def registry_reader(converter: RegistryConverter) -> ReadDocument:
    """Return the function that reads the fields of a value.

    It raises RowError, which is a ValueError, for a value that can't be read; Unreachable and ConfigError of the
    registry.
    """
    decode = decoder_of(converter)

    def read(value: bytes) -> Document:
        [decoded] = decode([value])
        if decoded.schema is None or decoded.schema.type is not Type.STRUCT:
            raise RowError("the value is no record with fields")
        document: Document = _plain_function(decoded.schema)(decoded.value)
        return document

    return read


def schema_of_value(converter: RegistryConverter, value: bytes) -> Schema | None:
    """Return the schema of a value; None for one that can't be read. Raises Unreachable, ConfigError."""
    try:
        [decoded] = decoder_of(converter)([value])
    except RowError:
        return None
    return decoded.schema


def _plain_function(schema: Schema) -> Callable[[Any], Any]:
    """Return the function that makes decimals of bytes; dates and times stay Connect's numbers."""
    if schema.type is Type.STRUCT:
        functions = {field.name: _plain_function(field.schema) for field in schema.fields}
        return lambda value: value and {name: function(value.get(name)) for name, function in functions.items()}
    if schema.type is Type.ARRAY and schema.values is not None:
        item_of = _plain_function(schema.values)
        return lambda values: None if values is None else [item_of(value) for value in values]
    if schema.name == DECIMAL and (decimal_of := java_value(schema)) is not None:
        return lambda value: None if value is None else decimal_of(value)
    return lambda value: value
