"""Loads into a topic, on a real Spark, Kafka and Postgres."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from compactory import Directory, DirectoryWriter
from compactory.errors import CompactoryError, ConfigError, LeaseLost
from compactory.kafka import Kafka
from compactory_connectors.source.connector import ConnectorConfig
from compactory_connectors.source.partitioner import partition_of
from compactory_connectors.source.source import Source
from compactory_connectors.source.topics import read
from compactory_connectors.spark.column_types import parse_type
from compactory_connectors.spark.target import Change, Differences, Mode, Written
from compactory_connectors.spark.to_kafka import KafkaTarget
from tests.source.poller import config, settings as keyed
from tests.spark.test_postgres_text import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = Sequence[tuple[Any, ...]]

TERMINALS = {"id": "bigint", "acquirer": "text", "limit_": "numeric(10,2)", "is_active": "boolean"}
TABLE = "CREATE TABLE t (id int8 PRIMARY KEY, acquirer text, limit_ numeric(10,2), is_active bool, changed timestamp)"


@pytest.fixture
def cluster(kafka: str) -> Kafka:
    return Kafka(kafka)


def topic_of(cluster: Kafka, name: str, partitions: int = 3) -> str:
    cluster.create_topic(name, partitions=partitions, config={"cleanup.policy": "compact"})
    return name


def frame(spark: SparkSession, types: dict[str, str], rows: Rows) -> DataFrame:
    ddl = ", ".join(f"{name} {parse_type(kind).spark}" for name, kind in types.items())
    return spark.createDataFrame(list(rows), ddl)


def contents(cluster: Kafka, topic: str) -> dict[bytes, tuple[int, bytes | None, Any]]:
    """What a topic holds by key: where, what, and its headers."""
    return {
        message.key(): (message.partition(), message.value(), message.headers()) for message in read(cluster, topic)
    }


def load(target: KafkaTarget, rows: DataFrame, mode: Mode = Mode.UPSERT) -> tuple[Differences, Written]:
    try:
        assert target.columns
        found = target.compare(rows, mode)
        return found, target.write()
    finally:
        target.close()


def counted(found: Differences) -> dict[str, int]:
    return {change.value: count for change, count in found.counts.items() if count}


@pytest.fixture
def entries(spark: SparkSession, cluster: Kafka, unique: Callable[[str], str]) -> Callable[..., KafkaTarget]:
    """A load into a directory that is mastered in Kafka; all of one test go into the same."""
    directory = Directory(topic_of(cluster, unique("entries")), active="is_active")

    def make(**changes: Any) -> KafkaTarget:
        given = {"directory": directory, "connector": None, "types": TERMINALS, "key": ["id"], **changes}
        return KafkaTarget(spark=spark, kafka=cluster, **given)

    return make


# Bytes


HEADERS = {
    "transforms": "key,id,mark,active",
    "transforms.mark.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.mark.header": "origin",
    "transforms.mark.value.literal": "table",
    "transforms.active.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
    "transforms.active.exclude": "b",
}
VALUES = {
    "compactory.soft.delete.column": "b",
    "compactory.soft.delete.mode": "value",
    "numeric.mapping": "best_fit",
    "value.converter.schemas.enable": "true",
}
ANY_ROWS = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, (_, _, values) in COLUMNS.items()}),
    min_size=30,
    max_size=40,
)


@pytest.mark.parametrize("kind", [VALUES, HEADERS | {"compactory.soft.delete.column": "b"}])
@settings(
    max_examples=1,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_bytes_partitions_and_headers_are_those_of_the_source(
    spark: SparkSession, cluster: Kafka, database: str, unique: Callable[[str], str], kind: Any, data: st.DataObject
) -> None:
    rows = data.draw(ANY_ROWS)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("DROP TABLE IF EXISTS t")
        sql.execute(
            f"CREATE TABLE t (id int8 PRIMARY KEY, {', '.join(f'{n} {k}' for n, (k, _, _) in COLUMNS.items())})"
        )
        values = ", ".join(f"%({name})s::{kind_}" for name, (kind_, _, _) in COLUMNS.items())
        for number, row in enumerate(rows):
            sql.execute(f"INSERT INTO t VALUES ({number}, {values})", row)
    prefixes = [unique("real") + "-", unique("loaded") + "-"]
    connectors = [config(keyed(database, "bulk") | {"topic.prefix": prefix} | kind, name=prefix) for prefix in prefixes]
    for prefix in prefixes:
        topic_of(cluster, f"{prefix}t")
    Source(connectors[0], cluster).run(threading.Event(), once=True, patience=20)
    types = {"id": "bigint"} | {name: kind_ for name, (kind_, _, _) in COLUMNS.items()}
    arrow = pa.table(
        {"id": pa.array(range(len(rows)), pa.int64())}
        | {name: pa.array([row[name] for row in rows], held) for name, (_, held, _) in COLUMNS.items()}
    )
    ddl = ", ".join(f"{name} {parse_type(kind_).spark}" for name, kind_ in types.items())
    target = KafkaTarget(
        spark=spark, kafka=cluster, directory=Directory(f"{prefixes[1]}t"), connector=connectors[1], types={}
    )
    assert [column.type for column in target.columns] == [
        kind_ for name, kind_ in types.items() if name in {column.name for column in target.columns}
    ]
    load(target, spark.createDataFrame(arrow, ddl))
    real = {key: found for key, found in contents(cluster, f"{prefixes[0]}t").items() if found[1] is not None}
    assert contents(cluster, f"{prefixes[1]}t") == real
    assert real or all(row["b"] is False for row in rows)
