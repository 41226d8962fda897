"""Loads and DataFrames into a plain topic, on a real Spark and Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from compactory import Directory, DirectoryWriter
from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory_api.http.access import Access, Scope
from compactory_client import Client
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.spark import register
from compactory_connectors.spark.column_types import parse_type
from compactory_connectors.spark.into_topic import KafkaTarget
from compactory_connectors.spark.target import Change, Differences, DirectoryServer, Mode, Sample
from compactory_mastered import WriteRules
from tests.api.conftest import serve  # noqa: F401 (a fixture)
from tests.api.serving import Serving
from tests.source.poller import config, settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TERMINALS = {"id": "bigint", "acquirer": "text", "limit_": "numeric(10,2)", "is_active": "boolean"}


@pytest.fixture
def cluster(kafka: str) -> Kafka:
    return Kafka(kafka)


def topic_of(cluster: Kafka, name: str, partitions: int = 3) -> str:
    cluster.create_topic(name, partitions=partitions, config={"cleanup.policy": "compact"})
    return name


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], types: dict[str, str] = TERMINALS) -> DataFrame:
    ddl = ", ".join(f"{name} {parse_type(kind).spark}" for name, kind in types.items())
    return spark.createDataFrame(list(rows), ddl)


def contents(cluster: Kafka, topic: str) -> dict[bytes, tuple[int, bytes | None]]:
    """The newest record of each key: its partition and its value."""
    return {message.key(): (message.partition(), message.value()) for message in read(cluster, topic)}


def counted(differences: Differences) -> dict[str, int]:
    return {change.value: count for change, count in differences.counts.items() if count}


def test_a_load_sends_what_differs(spark: SparkSession, cluster: Kafka, unique: Callable[[str], str]) -> None:
    directory = Directory(topic_of(cluster, unique("entries")), active="is_active")

    def load(rows: DataFrame, mode: Mode = Mode.UPSERT, spared: DataFrame | None = None) -> Differences:
        target = KafkaTarget(spark=spark, kafka=cluster, directory=directory, types=TERMINALS, key=["id"])
        try:
            assert target.columns
            differences = target.compare(rows, mode, spared)
            assert target.write().counts == differences.counts
            return differences
        finally:
            target.close()

    first = [(number, f"A{number}", None, True) for number in range(30)]
    differences = load(frame(spark, first))
    assert (counted(differences), differences.present) == ({"insert": 30}, 0)
    before = list(read(cluster, directory.topic))
    differences = load(frame(spark, first), Mode.REPLACE)
    assert (counted(differences), differences.present) == ({"unchanged": 30}, 30)
    assert len(list(read(cluster, directory.topic))) == len(before)
    changed = [(0, "B0", None, True), (1, "A1", None, False), *first[2:20], (77, "new", None, False)]
    differences = load(frame(spark, changed))
    assert counted(differences) == {"insert": 1, "update": 1, "deactivate": 1, "unchanged": 18}
    entry = {"id": 0, "acquirer": "A0", "limit_": None, "is_active": True}
    (sample,) = differences.samples[Change.UPDATE]
    assert sample == Sample(
        before={"key": "0", "value": entry}, after={"key": "0", "value": entry | {"acquirer": "B0"}}
    )
    rejected = spark.createDataFrame([(12,), (12,), (5,), (500,)], "id bigint")
    differences = load(frame(spark, changed[:10]), Mode.REPLACE, rejected)
    assert (counted(differences), differences.present) == ({"unchanged": 10, "deactivate": 19}, 29)
    newest = contents(cluster, directory.topic)
    assert {key for key, (_, value) in newest.items() if value is None} == {
        b"%d" % number for number in range(10, 30) if number != 12
    }
    assert newest[b"77"][1] is not None, "it was inactive before, so nothing is missing"


def test_a_directory_mastered_in_kafka_is_written_by_its_server(
    spark: SparkSession,
    cluster: Kafka,
    unique: Callable[[str], str],
    serve: Callable[..., Serving],  # noqa: F811
) -> None:
    rules = WriteRules(schema={"properties": {"limit_": {"pattern": "^[0-9.]+$"}}}, internal=("secret",))
    directory = Directory("terminals", topic=topic_of(cluster, unique("mastered")), rules=rules)
    url = f"http://127.0.0.1:{serve(directory, access=Access(anonymous=Scope.WRITE)).port}"

    def load(rows: Sequence[tuple[Any, ...]], mode: Mode = Mode.UPSERT) -> dict[str, int]:
        target = KafkaTarget(
            spark=spark, kafka=cluster, directory=directory, types=TERMINALS, key=["id"],
            server=DirectoryServer(url=url), load_id=unique("load"),
        )  # fmt: skip
        try:
            differences = target.compare(frame(spark, rows), mode)
            target.write()
            return counted(differences)
        finally:
            target.close()

    rows = [(number, f"A{number}", None, True) for number in range(6)]
    assert load(rows) == {"insert": 6}
    with Client(url) as client:
        entries = client.directory("terminals")
        entries.put("1", {"is_active": True, "secret": "s", "acquirer": "A1", "id": 1})
        count = len(list(read(cluster, directory.topic)))
        assert load(rows) == {"unchanged": 6}, "neither the order of fields nor an internal one is a change"
        assert len(list(read(cluster, directory.topic))) == count
        assert load([(0, "B0", None, True), *rows[1:5]], Mode.REPLACE) == {"update": 1, "unchanged": 4, "deactivate": 1}
        assert [key for key, _ in entries.items()] == ["0", "1", "2", "3", "4"]
        assert entries.get("0").value == {"id": 0, "acquirer": "B0", "is_active": True}
    with pytest.raises(ConfigError, match="is mastered in Kafka: name a server that writes it"):
        KafkaTarget(spark=spark, kafka=cluster, directory=directory, types=TERMINALS, key=["id"])


def test_records_are_those_of_a_directory_writer(
    spark: SparkSession, cluster: Kafka, unique: Callable[[str], str]
) -> None:
    register(spark)
    at = datetime(2024, 2, 29, 1, 2, 3, 500_000, tzinfo=UTC)
    rows = spark.createDataFrame(
        [("k1", "é😀", at, b"\x00\xff", 0.1, [1, 2])],
        "_key string, name string, seen timestamp, raw binary, ratio float, numbers array<int>",
    ).selectExpr("*", "CAST('1.500' AS decimal(10,3)) AS rate", "DATE'2024-02-29' AS since", "CAST(NULL AS int) AS n")
    entry = {
        "name": "é😀", "seen": "2024-02-29T01:02:03.500000+00:00", "raw": "AP8=", "ratio": 0.1, "numbers": [1, 2],
        "rate": "1.500", "since": "2024-02-29",
    }  # fmt: skip
    sent, written = (topic_of(cluster, unique("frames")) for _ in range(2))
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": sent}
    rows.write.format("compactory").mode("append").options(**options).save()
    with DirectoryWriter(cluster.properties(), Directory(written, writable=True)) as writer:
        writer.put("k1", entry)
    assert contents(cluster, sent) == contents(cluster, written)
    changes = spark.createDataFrame([("k1", "delete", None), ("k2", None, "x")], "_key string, _op string, name string")
    changes.write.format("compactory").mode("append").options(**options, ignoreNullFields="false").save()
    newest = contents(cluster, sent)
    assert {key: value for key, (_, value) in newest.items()} == {b"k1": None, b"k2": b'{"name":"x"}'}


def test_rows_without_a_record_are_refused(spark: SparkSession, cluster: Kafka, unique: Callable[[str], str]) -> None:
    directory = Directory(topic_of(cluster, unique("entries")))
    types = {"id": "bigint", "doc": "jsonb"}
    target = KafkaTarget(spark=spark, kafka=cluster, directory=directory, types=types, key=["id"])
    with pytest.raises(
        CompactoryError, match="no record can be made of 1 rows: a json column holds text that is not JSON"
    ):
        target.compare(frame(spark, [(1, "{"), (2, '{"a": [1]}')], types), Mode.UPSERT)
    with pytest.raises(CompactoryError, match="several rows have the record key 2: give the rules a unique key"):
        target.compare(frame(spark, [(2, "1"), (2, "2")], types), Mode.UPSERT)
    target.close()
    with pytest.raises(ConfigError, match="has no connector, so list its columns in the rules"):
        KafkaTarget(spark=spark, kafka=cluster, directory=directory, types={}, key=["id"])
    with pytest.raises(ConfigError, match="the key of a record is one column, and the rules' key is id, doc"):
        KafkaTarget(spark=spark, kafka=cluster, directory=directory, types=types, key=["id", "doc"])


def test_wrong_options_of_a_topic_are_told_at_once(spark: SparkSession, kafka: str) -> None:
    register(spark)
    rows = spark.range(1).selectExpr("id", "CAST(NULL AS interval day) AS span")
    writer = rows.write.format("compactory").options(**{"topic": "t", "kafka.bootstrap.servers": kafka, "rw": "true"})
    with pytest.raises(Exception, match="there is no option 'rw' for writing; did you mean raw") as error:
        writer.mode("append").save()
    for problem in ("column _key is missing", "mode overwrite would remove keys"):
        with pytest.raises(Exception, match=problem):
            spark.range(1).write.format("compactory").options(**{"topic": "t", "kafka.bootstrap.servers": kafka}).mode(
                "overwrite"
            ).save()
    assert "column span: JSON has nothing for type interval day" in str(error.value)


def test_the_topic_of_a_connector_is_refused(
    spark: SparkSession, cluster: Kafka, database: str, unique: Callable[[str], str]
) -> None:
    """Guarantee 11."""
    register(spark)
    prefix = unique("owned") + "-"
    topic = topic_of(cluster, f"{prefix}t")
    connector = config(settings(database, "timestamp+incrementing") | {"topic.prefix": prefix}, name=prefix)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int8 PRIMARY KEY, changed timestamp NOT NULL)")
        sql.execute("INSERT INTO t VALUES (1, now())")
    Source(connector, cluster).run(threading.Event(), once=True, timeout=20)
    owned = rf"topic '{topic}' is that of connector '{prefix}' .*Write into its table"
    target = KafkaTarget(spark=spark, kafka=cluster, directory=Directory(topic), types=TERMINALS, key=["id"])
    with pytest.raises(ConfigError, match=owned):
        _ = target.columns
    writer = spark.range(1).selectExpr("'k' AS _key", "id").write.format("compactory").mode("append")
    with pytest.raises(Exception, match=owned):
        writer.options(**{"topic": topic, "kafka.bootstrap.servers": cluster.bootstrap}).save()
    assert len(contents(cluster, topic)) == 1
