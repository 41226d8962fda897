"""The values of a topic by its connector's file: their columns, their envelope, how decimals are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql import types as t

from compactory.errors import ConfigError
from compactory.nearest import nearest
from compactory_connectors.connect.converters.avro_converter import AvroConverter
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.json_schema_converter import JsonSchemaConverter
from compactory_connectors.connect.record.schema import DATE, DECIMAL, TIMESTAMP, Schema, Type
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.config.files import load_connector
from compactory_connectors.source.mapping.row_plan import value_schema
from compactory_connectors.source.planning.planner import find_plans
from compactory_connectors.source.postgres.catalog import Table
from compactory_connectors.source.postgres.server import Server

from .options import ReadOptions

__all__ = ["columns_of_connector", "columns_of_schema", "with_connector"]

_MOST_DIGITS: Final = 38
"""Digits of Spark's decimals."""


def with_connector(options: ReadOptions) -> ReadOptions:
    """Return the options with what the connector's file adds: envelope, decimals, value format, field of deletions.

    Asks no database. Raises ConfigError for a file that can't be read, or whose values have no fields.
    """
    connector = _connector(options)
    converter = connector.value_converter
    if not isinstance(converter, JsonConverter | AvroConverter | JsonSchemaConverter):
        name = type(converter).__name__
        raise ConfigError(f"connector {connector.name!r} writes values by {name}, without fields: set raw = true")
    soft_delete = connector.soft_delete
    if soft_delete is not None and not soft_delete.tombstone and options.active is None:
        options = replace(options, active=soft_delete.column)
    if not isinstance(converter, JsonConverter):
        return replace(options, converter=converter)
    if converter.schemas_enable and options.envelope == "none":
        options = replace(options, envelope="connect")
    return replace(options, base64_decimals=not converter.numeric)


def columns_of_connector(options: ReadOptions) -> list[t.StructField]:
    """Return the columns of the values that the connector writes into the topic, as its database describes the table.

    Raises ConfigError where it has no such topic, Unreachable where the database does not answer.
    """
    connector = _connector(options)
    schema = value_schema(connector, _table_of_topic(connector, options.topics[0]))
    if schema is None or schema.type is not Type.STRUCT:
        raise ConfigError(f"connector {connector.name!r} writes values without fields: give .schema(…), or raw = true")
    return columns_of_schema(schema)


def columns_of_schema(schema: Schema) -> list[t.StructField]:
    """Return the columns of a struct of Kafka Connect. Names that begin with ``_`` are the record's own."""
    fields = [field for field in schema.fields if not field.name.startswith("_")]
    return [t.StructField(field.name, _spark_type(field.schema)) for field in fields]


def _connector(options: ReadOptions) -> ConnectorConfig:
    assert options.connector is not None
    return load_connector(options.connector)


def _table_of_topic(connector: ConnectorConfig, topic: str) -> Table:
    with postgres_errors(connector.connection):
        server = Server.open(connector.connection.conninfo)
        try:
            plans = find_plans(server, connector)  # problems of other tables do not matter here
        finally:
            server.close()
    tables = [plan.rows.table for plan in plans.plans if topic in plan.rows.topics]
    if not tables:
        topics = [name for plan in plans.plans for name in plan.rows.topics]
        raise ConfigError(
            plans.all_problems
            or f"connector {connector.name!r} has no table whose records go to topic {topic!r}{nearest(topic, topics)}"
        )
    if len(tables) > 1:
        raise ConfigError(f"topic {topic!r} has records of several tables: give .schema(…)")
    return tables[0]


def _spark_type(schema: Schema) -> t.DataType:
    if schema.name == DECIMAL:
        return _decimal_type(dict(schema.parameters))
    if schema.type is Type.ARRAY and schema.values is not None:
        return t.ArrayType(_spark_type(schema.values))
    if schema.type is Type.MAP and schema.values is not None:
        return t.MapType(t.StringType(), _spark_type(schema.values))
    if schema.type is Type.STRUCT and schema.fields:
        return t.StructType([t.StructField(field.name, _spark_type(field.schema)) for field in schema.fields])
    logical_types = {DATE: t.DateType(), TIMESTAMP: t.TimestampType()}
    plain_types = {
        Type.BOOLEAN: t.BooleanType(),
        Type.INT8: t.ByteType(),
        Type.INT16: t.ShortType(),
        Type.INT32: t.IntegerType(),
        Type.INT64: t.LongType(),
        Type.FLOAT32: t.FloatType(),
        Type.FLOAT64: t.DoubleType(),
        Type.BYTES: t.BinaryType(),
    }
    return logical_types.get(schema.name or "") or plain_types.get(schema.type) or t.StringType()


def _decimal_type(parameters: dict[str, str]) -> t.DataType:
    """Return a decimal where Spark has one of so many digits, else the type of text."""
    scale = int(parameters["scale"])
    digits = int(parameters.get("connect.decimal.precision", _MOST_DIGITS))
    return t.DecimalType(digits, scale) if 0 <= scale <= digits <= _MOST_DIGITS else t.StringType()
