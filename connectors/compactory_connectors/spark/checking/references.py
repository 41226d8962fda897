"""The values that a rule lets rows refer to: what another directory has, in its table or in its topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.database.jdbc_url import Connection
from compactory_connectors.database.postgres_errors import postgres_errors
from compactory_connectors.database.watched_connection import connect
from compactory_connectors.source.config.selection import split_identifier
from compactory_sql import query

from ..into_topic.topic_changes import living
from ..topic.frame import capture, latest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["of_table", "of_topic"]


def of_table(spark: SparkSession, connection: Connection, table: str, column: str, active: str | None) -> DataFrame:
    """The values of a column in active rows, as text in ``value``, each once.

    Raises ConfigError where there is no such column or no right to read it, Unreachable.
    """
    condition = sql.SQL("{} IS NOT FALSE").format(sql.Identifier(active)) if active else sql.SQL("true")
    target = sql.Identifier(*(part for part in split_identifier(table) or (table,)))
    names = {"column": sql.Identifier(column), "target": target, "condition": condition}
    with postgres_errors(connection):
        session = connect({"connect_timeout": 10, "application_name": "compactory-load", **connection.conninfo})
        try:
            found = session.execute(sql.SQL(query("load/known")).format(**names)).fetchall()
        except psycopg.errors.Error as error:
            if isinstance(error, psycopg.OperationalError):
                raise
            raise ConfigError(f"{table}.{column}, to which the rules refer: {error.diag.message_primary}") from error
        finally:
            session.close()
    return _frame(spark, [str(row[0]) for row in found])


def of_topic(spark: SparkSession, kafka: Kafka, directory: Directory[Any], field: str | None) -> DataFrame:
    """The values of a field of active entries, by default of the directory's key. Raises ConfigError, Unreachable."""
    from pyspark.sql import functions as sf

    entries = latest(spark, kafka, capture(kafka, directory.topic))
    text = sf.col("value").cast("string")
    name = field or directory.key
    value = sf.col("key").cast("string") if name is None else sf.get_json_object(text, f"$['{name}']")
    if directory.active is not None:
        entries = entries.mapInArrow(_active(directory), entries.schema)
    return entries.select(value.alias("value")).where("value IS NOT NULL").distinct()


def _active(directory: Directory[Any]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Leaves the entries that stores find, in tasks."""
    lives = living(directory)

    def leave(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield batch.filter(pa.array(map(lives, batch.column("value").to_pylist()), pa.bool_()))

    return leave


def _frame(spark: SparkSession, values: Sequence[str]) -> DataFrame:
    import pyarrow as pa

    return spark.createDataFrame(pa.table({"value": pa.array(values, pa.string())}))
