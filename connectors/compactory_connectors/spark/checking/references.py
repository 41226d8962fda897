"""The values that a rule lets rows refer to: what another directory has, in its table or in its topic.

Tasks read them, so that the driver holds none of them.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.watched_connection import connect
from compactory_sql import query
from compactory_sql.naming import split_name

from ..identifier import quoted
from ..into_table.staging import workers_conninfo
from ..record_batch import Batches
from ..topic.entries import kafka_options

__all__ = ["of_table", "of_topic"]

_BATCH: Final = 10_000


def of_table(spark: SparkSession, connection: Connection, table: str, column: str, active: str | None) -> DataFrame:
    """The values of a column in active rows, as text in ``value``, each once. Every action reads them again.

    Raises ConfigError where there is no such column or no right to read it, Unreachable.
    """
    condition = sql.SQL("{} IS NOT FALSE").format(sql.Identifier(active)) if active else sql.SQL("true")
    parts = split_name(table) or [(table, True)]
    target = sql.Identifier(*(part for part, _ in parts))
    names = {"column": sql.Identifier(column), "target": target, "condition": condition}
    with postgres_errors(connection):
        session = connect({"connect_timeout": 10, "application_name": "compactory-load", **connection.conninfo})
        try:
            statement = sql.SQL(query("load/referenced_values")).format(**names).as_bytes(session)
            session.execute(b"EXPLAIN " + statement)
            conninfo: dict[str, Any] = {**workers_conninfo(session)}
        except psycopg.errors.Error as error:
            if isinstance(error, psycopg.OperationalError):
                raise
            raise ConfigError(f"{table}.{column}, to which the rules refer: {error.diag.message_primary}") from error
        finally:
            session.close()

    def read(_batches: Batches) -> Batches:
        with psycopg.connect(**conninfo) as reading, reading.cursor("known") as cursor:
            cursor.execute(statement)
            while rows := cursor.fetchmany(_BATCH):
                yield pa.record_batch([pa.array([row[0] for row in rows], pa.string())], names=["value"])

    return spark.range(0, 1, 1, 1).mapInArrow(read, "value string")


def of_topic(spark: SparkSession, kafka: Kafka, directory: Directory[Any], field: str | None) -> DataFrame:
    """Return the texts in a field of active entries, by default of the directory's key. Raises ConfigError."""
    name = field or directory.key
    options = kafka_options(kafka) | {"topic": directory.topic, "envelope": directory.envelope}
    if directory.active is not None:
        options["active"] = directory.active
    value = "_key" if name is None else name
    columns = f"{quoted(value)} string, _error string"
    entries = spark.read.format("compactory").options(**options).schema(columns).load()
    values = entries.where("_error IS NULL").select(f.col(quoted(value)).alias("value"))
    return values.where("value IS NOT NULL").distinct()
