"""The values of a topic by its connector's file: their columns, their envelope, how decimals are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql import types as t

from compactory.errors import ConfigError
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.record.schema import DATE, DECIMAL, TIMESTAMP, Schema, Type
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.mapping.row_plan import value_schema

from ..into_topic.table_columns import described
from .options import ReadOptions

__all__ = ["columns_of_connector", "with_connector"]

_DIGITS: Final = 38  # of Spark's decimals


def with_connector(options: ReadOptions) -> ReadOptions:
    """The options with what the connector's file adds: its envelope, its decimals, the field that says deleted.

    Asks no database. Raises ConfigError for a file that can't be read, or whose values are no JSON.
    """
    connector = _connector(options)
    converter = connector.value_converter
    if not isinstance(converter, JsonConverter):
        name = type(converter).__name__
        raise ConfigError(f"connector {connector.name!r} writes values by {name}: typed columns need JSON; raw = true")
    directory = options.directory
    soft = connector.soft_delete
    if soft is not None and not soft.tombstone and directory.active is None:
        directory = replace(directory, active=soft.column)
    if converter.schemas_enable and directory.envelope == "none":
        directory = replace(directory, envelope="connect")
    return replace(options, directory=directory, base64_decimals=not converter.numeric)


def columns_of_connector(options: ReadOptions) -> list[t.StructField]:
    """The columns of the values that the connector writes into the topic, as its database describes the table.

    Raises ConfigError where it has no such topic, Unreachable where the database does not answer.
    """
    connector = _connector(options)
    table, _ = described(connector, options.directory.topic, {})
    schema = value_schema(connector, table)
    if schema is None or schema.type is not Type.STRUCT:
        raise ConfigError(f"connector {connector.name!r} writes values without fields: give .schema(…), or raw = true")
    named = [item for item in schema.fields if not item.name.startswith("_")]
    return [t.StructField(item.name, _spark_type(item.schema)) for item in named]


def _connector(options: ReadOptions) -> ConnectorConfig:
    assert options.connector is not None
    return load_connector(options.connector)


def _spark_type(schema: Schema) -> t.DataType:
    if schema.name == DECIMAL:
        return _decimal(dict(schema.parameters))
    if schema.type is Type.ARRAY and schema.values is not None:
        return t.ArrayType(_spark_type(schema.values))
    if schema.type is Type.STRUCT and schema.fields:
        return t.StructType([t.StructField(item.name, _spark_type(item.schema)) for item in schema.fields])
    logical = {DATE: t.DateType(), TIMESTAMP: t.TimestampType()}
    plain = {
        Type.BOOLEAN: t.BooleanType(),
        Type.INT8: t.ByteType(),
        Type.INT16: t.ShortType(),
        Type.INT32: t.IntegerType(),
        Type.INT64: t.LongType(),
        Type.FLOAT32: t.FloatType(),
        Type.FLOAT64: t.DoubleType(),
    }
    return logical.get(schema.name or "") or plain.get(schema.type) or t.StringType()


def _decimal(parameters: dict[str, str]) -> t.DataType:
    """A decimal where Spark has one of so many digits, else the text."""
    scale = int(parameters["scale"])
    digits = int(parameters.get("connect.decimal.precision", _DIGITS))
    return t.DecimalType(digits, scale) if 0 <= scale <= digits <= _DIGITS else t.StringType()
