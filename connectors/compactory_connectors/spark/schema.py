"""The columns of a directory, found by Spark's tasks in all of its values."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from compactory.directory import Envelope
from compactory.errors import ConfigError

from .registration import register
from .typed.inference import columns_of_variant

__all__ = ["infer_schema", "options_of", "struct_of"]

_log = logging.getLogger("compactory.spark")


def infer_schema(
    spark: SparkSession,
    directory: str,
    *,
    kafka: str | Mapping[str, str] | None = None,
    topic: str | None = None,
    envelope: Envelope = "none",
    at: str | None = None,
    versions: bool = False,
) -> StructType:
    """Return the fields of all JSON values of a topic, each with the type that holds its values, in order of names.

    Spark's tasks read the topic once; the driver gets the schema alone. Give the result to
    ``spark.read.format("compactory").schema(…)``. ``versions``: also of older values, as streams and the option
    ``versions`` read them. ``kafka``: servers, or the client's properties; default: the variable ``COMPACTORY_KAFKA``.
    A warning names fields without a column. Raises ConfigError, Unreachable.
    """
    register(spark)
    options = options_of(kafka, "infer_schema", {"topic": topic or directory, "at": at})
    reader = spark.read.format("compactory").options(**options)
    if versions:
        records = reader.option("raw", "true").schema("value binary").load().toDF("_value")
    else:
        records = reader.schema("_value binary, _error string").load()
    texts = records.select(f.try_validate_utf8(f.col("_value").cast("string")).alias("text"))
    objects = texts.where(f.ltrim("text", f.lit(" \t\r\n")).startswith("{"))  # the schema of each value costs more
    payloads = objects.select(_payload(f.try_parse_json("text"), envelope).alias("payload"))
    if envelope != "none":
        payloads = payloads.where(f.schema_of_variant("payload").startswith("OBJECT"))
    [row] = payloads.select(f.schema_of_variant_agg("payload")).collect()
    try:
        columns, without_column = columns_of_variant(row[0] or "VOID")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if without_column:
        _log.warning("topic %s: fields without a column: %s", topic or directory, ", ".join(without_column))
    return StructType(columns)


def options_of(kafka: str | Mapping[str, str] | None, function: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return options of the format: Kafka's properties, and those of ``options`` that are not None.

    ``kafka``: servers, or the client's properties; default: the variable ``COMPACTORY_KAFKA``. Raises ConfigError that
    names the function where there are none.
    """
    client = os.environ.get("COMPACTORY_KAFKA") if kafka is None else kafka
    if not client:
        raise ConfigError(f"which Kafka? give {function}(…, kafka='HOST:PORT') or set COMPACTORY_KAFKA")
    client = {"bootstrap.servers": client} if isinstance(client, str) else client
    properties = {f"kafka.{name}": str(value) for name, value in client.items()}
    return properties | {name: str(value) for name, value in options.items() if value is not None}


def struct_of(columns: str | StructType) -> StructType:
    """Return columns, also of Spark's words for them, as ``id bigint, price decimal(10,2)``. Raises ConfigError."""
    if isinstance(columns, StructType):
        return columns
    if not columns.strip():
        raise ConfigError("the columns are empty: name columns, or leave them out")
    try:
        parsed = StructType.fromDDL(columns)
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"columns {columns!r} are no list such as 'id bigint, name string': {reason}") from error
    assert isinstance(parsed, StructType)  # the text of one type alone would be another
    return parsed


def _payload(value: Column, envelope: Envelope) -> Column:
    """Return the object within an envelope."""
    paths = {"connect": ("$.payload",), "debezium": ("$.payload.after", "$.after")}
    if envelope not in paths:
        return value
    return f.coalesce(*(f.variant_get(value, path, "variant") for path in paths[envelope]))
