"""The columns of ``load()`` without a schema: those of the newest values, as Spark's readers sample files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, Final

from pyspark.sql.types import StructField

from compactory.codec.decoding import document_reader
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

from ..topic.reading import read_span
from ..typed.inference import infer_columns
from .batch import reading_of
from .options import ReadOptions
from .position import extents_of

__all__ = ["sampled_columns"]

_REGISTRY_MARK: Final = b"\0"
"""The first byte of values with the id of a schema; a JSON object never begins with it."""

_log = logging.getLogger("compactory.spark")


def sampled_columns(options: ReadOptions) -> list[StructField]:
    """Return columns for the fields of the newest values. Holds the sample.

    A warning names fields without a column. Raises ConfigError, Unreachable.
    """
    values = list(_newest_values(options))
    if options.converter is not None:
        return _columns_of_registry(options.converter, values)
    if values and all(value[:1] == _REGISTRY_MARK for value in values):
        raise ConfigError(
            "the values begin with the id of a schema registry's schema: set option valueFormat to avro or json-schema,"
            " and schema.registry.url"
        )
    read = document_reader(options.envelope)
    documents: list[dict[str, Any]] = []
    for value in values:
        with suppress(ValueError):  # such a record has the column _error
            documents.append(read(value) or {})
    try:
        columns, without_column = infer_columns(documents)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if without_column:
        _log.warning(
            "fields without a column: %s; names begin with _, or differ from another in case alone",
            ", ".join(without_column),
        )
    return columns


def _newest_values(options: ReadOptions) -> Iterator[bytes]:
    with closing(Kafka(options.kafka)) as kafka:
        for extent in extents_of(kafka, options):
            reading = reading_of(options, extent.topic)
            for span in extent.newest(options.sample):
                for batch in read_span(reading, span):
                    yield from batch.column("value").drop_null().to_pylist()


def _columns_of_registry(converter: Any, values: list[bytes]) -> list[StructField]:
    """Return the columns of all schemas of the values; of two columns of one name the newer one."""
    from .connector_columns import columns_of_schema
    from .registry import schema_of_value

    columns: dict[str, StructField] = {}
    for value in {value[:5]: value for value in values}.values():  # a value of each schema
        schema = schema_of_value(converter, value)
        if schema is not None:
            columns |= {column.name: column for column in columns_of_schema(schema)}
    return list(columns.values())
