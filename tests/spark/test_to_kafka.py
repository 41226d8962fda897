"""Loads into a topic, on a real Spark, Kafka and Postgres."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from compactory import Directory, DirectoryWriter
from compactory.errors import CompactoryError, ConfigError, LeaseLost
from compactory.kafka.client import Kafka
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.kafka.partitioner import partition_of
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.postgres.jdbc_url import parse_url
from compactory_connectors.source.offsets.offset import SourceOffset
from compactory_connectors.source.offsets.offset_parts import Identity
from compactory_connectors.source.offsets.stored_offsets import StoredOffset, read_offsets
from compactory_connectors.source.offsets.topics import publisher_of
from compactory_connectors.source.operations.offset_edit import OffsetChange, edit_offsets, new_edit
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.status.status import SourceState
from compactory_connectors.spark.column_types import parse_type
from compactory_connectors.spark.into_topic import sending
from compactory_connectors.spark.into_topic.sending import Sending
from compactory_connectors.spark.into_topic.to_kafka import KafkaTarget
from compactory_connectors.spark.into_topic.topic_claim import owners
from compactory_connectors.spark.target import Change, Differences, Mode, Sample, Written
from tests.source.poller import config
from tests.source.poller import settings as keyed
from tests.source.workload import wait_until
from tests.spark import mortal_load
from tests.spark.test_table_texts import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = Sequence[tuple[Any, ...]]

TERMINALS = {"id": "bigint", "acquirer": "text", "limit_": "numeric(10,2)", "is_active": "boolean"}
TABLE = """
CREATE TABLE t (
    id int8 PRIMARY KEY, acquirer text, limit_ numeric(10,2), is_active bool, changed timestamp NOT NULL)
"""


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


def living(cluster: Kafka, topic: str) -> set[tuple[bytes, int]]:
    """The keys that have a value in a partition, each with that partition."""
    newest = {(message.key(), message.partition()): message.value() for message in read(cluster, topic)}
    return {where for where, value in newest.items() if value is not None}


def load(
    target: KafkaTarget, rows: DataFrame, mode: Mode = Mode.UPSERT, spared: DataFrame | None = None
) -> tuple[Differences, Written]:
    try:
        assert target.columns
        found = target.compare(rows, mode, spared)
        return found, target.write()
    finally:
        target.close()


def topic_name(target: KafkaTarget) -> str:
    return target.label.removeprefix("topic ")


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


WITHOUT_FLAG = {
    "transforms": "key,id,active",
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
    min_size=12,
    max_size=15,
)


@pytest.mark.parametrize("kind", [VALUES, WITHOUT_FLAG | {"compactory.soft.delete.column": "b"}])
@settings(
    max_examples=1,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_bytes_and_partitions_are_those_of_the_source(
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
    Source(connectors[0], cluster).run(threading.Event(), once=True, timeout=20)
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


def test_entries_are_written_as_a_directory_writer_writes_them(
    spark: SparkSession, cluster: Kafka, unique: Callable[[str], str]
) -> None:
    types = {
        "id": "bigint", "name": "text", "rate": "numeric(10,3)", "any": "numeric", "share": "double precision",
        "on": "boolean", "since": "date", "at": "timestamp", "seen": "timestamptz", "raw": "bytea", "doc": "jsonb",
        "ratio": "real",
    }  # fmt: skip
    at, zoned = "2024-02-29 01:02:03.5", "2024-02-29 01:02:03+00:00"
    document = '{"b": [1, 2.50], "a": null}'
    rows = spark.createDataFrame(
        [(1, 'é😀\n"', "1.500", "1E+3", 0.1, True, "2024-02-29", at, zoned, b"\x00\xff", document, 0.1)]
    ).toDF(*types)
    casts = {name: parse_type(kind).spark for name, kind in types.items()}
    rows = rows.selectExpr(*(f"cast(`{name}` AS {kind}) AS `{name}`" for name, kind in casts.items()), "1 AS other")
    entry = {
        "id": 1, "name": "é😀\n\"", "rate": "1.500", "any": "1E+3", "share": 0.1, "on": True, "since": "2024-02-29",
        "at": "2024-02-29T01:02:03.5", "seen": "2024-02-29T01:02:03+00:00", "raw": "AP8=",
        "doc": {"b": [1, 2.5], "a": None}, "ratio": 0.1,
    }  # fmt: skip
    nulls = dict.fromkeys(types) | {"id": -2}
    loaded, written = (Directory(topic_of(cluster, unique("entries")), writable=True) for _ in range(2))
    everything = rows.unionByName(frame(spark, types, [tuple(nulls.values())]), allowMissingColumns=True)
    load(KafkaTarget(spark=spark, kafka=cluster, directory=loaded, connector=None, types=types, key=["id"]), everything)
    with DirectoryWriter(cluster.properties(), written) as writer:
        writer.put_many({"1": entry, "-2": nulls})
    assert contents(cluster, loaded.topic) == contents(cluster, written.topic)


# What is sent


def test_only_what_differs_is_sent(spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget]) -> None:
    rows = [(number, f"A{number}", None, True) for number in range(30)]
    found, written = load(entries(), frame(spark, TERMINALS, rows))
    assert counted(found) == {"insert": 30}
    assert found.present == 0
    assert written.counts == found.counts
    topic = topic_name(entries())
    before = list(read(cluster, topic))
    found, _ = load(entries(), frame(spark, TERMINALS, rows), Mode.REPLACE)
    assert counted(found) == {"unchanged": 30}
    assert found.present == 30
    assert len(list(read(cluster, topic))) == len(before)
    changed = [(0, "B0", None, True), (1, "A1", None, False), *rows[2:20], (77, "new", None, False)]
    found, _ = load(entries(), frame(spark, TERMINALS, changed))
    assert counted(found) == {"insert": 1, "update": 1, "deactivate": 1, "unchanged": 18}
    assert len(list(read(cluster, topic))) == len(before) + 3
    (sample,) = found.samples[Change.UPDATE]
    entry = {"id": 0, "acquirer": "A0", "limit_": None, "is_active": True}
    assert sample == Sample(
        before={"key": "0", "value": entry}, after={"key": "0", "value": entry | {"acquirer": "B0"}}
    )
    dry = entries(dry_run=True)
    found = dry.compare(frame(spark, TERMINALS, changed[:10]), Mode.REPLACE)
    dry.close()
    assert counted(found) == {"unchanged": 10, "deactivate": 20}
    assert found.present == 29
    assert len(list(read(cluster, topic))) == len(before) + 3
    rejected = spark.createDataFrame([(12,), (12,), (5,), (500,)], "id bigint")
    found, _ = load(entries(), frame(spark, TERMINALS, changed[:10]), Mode.REPLACE, rejected)
    assert counted(found) == {"unchanged": 10, "deactivate": 19}
    now = contents(cluster, topic)
    assert {key for key, (_, value, _) in now.items() if value is None} == {
        b"%d" % number for number in range(10, 30) if number != 12
    }
    assert now[b"77"][1] is not None  # deactivated before, and nobody's any more


def test_rows_without_a_record_are_refused(spark: SparkSession, entries: Callable[..., KafkaTarget]) -> None:
    rows = [(1, "A", None, True), (2, "B", None, True), (1, "C", None, True)]
    persisted = spark.sparkContext._jsc.getPersistentRDDs
    before = {*persisted()}
    with pytest.raises(CompactoryError, match="1 rows have a record key that another row has as well: 1;"):
        load(entries(), frame(spark, TERMINALS, rows))
    types = TERMINALS | {"doc": "jsonb"}
    with pytest.raises(CompactoryError, match=r"no record can be made of 1 rows: column doc: is no JSON$"):
        load(entries(types=types), frame(spark, types, [(1, "A", None, True, "{secret}"), (2, "B", None, True, "{}")]))
    with pytest.raises(ConfigError, match="the rows lack limit_, is_active"):
        load(entries(), frame(spark, TERMINALS, []).select("id", "acquirer"))
    with pytest.raises(ConfigError, match="the key of a record is one column, and the rules' key is id, acquirer"):
        _ = entries(key=["id", "acquirer"]).columns
    assert {*persisted()} == before, "nor is anything of them kept"


def test_copies_in_wrong_partitions_are_buried(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget]
) -> None:
    topic = topic_name(entries())
    producer = cluster.producer({}, {}, print)
    for key in (b"1", b"2", b"3"):
        home = partition_of(key, 3)
        producer.produce(topic, b'{"id":%s}' % key, key, partition=(home + 1) % 3, timestamp=1_000)
        if key != b"2":
            producer.produce(topic, b'{"id":%s,"acquirer":"new"}' % key, key, partition=home)
    producer.flush(10)
    found, _ = load(entries(), frame(spark, TERMINALS, [(1, "A", None, True), (2, "B", None, True)]), Mode.REPLACE)
    assert counted(found) == {"update": 2, "deactivate": 1}
    assert living(cluster, topic) == {(key, partition_of(key, 3)) for key in (b"1", b"2")}


# Whole or not at all


def test_a_load_that_kafka_refuses_leaves_nothing_and_blocks_nobody(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget], unique: Callable[[str], str]
) -> None:
    topic = unique("narrow")
    cluster.create_topic(topic, partitions=2, config={"cleanup.policy": "compact", "max.message.bytes": "20000"})
    directory = Directory(topic)
    rows = [(number, "x" * 1000, None, True) for number in range(300)]
    target = entries(directory=directory)
    with pytest.raises(CompactoryError, match=r"refuses records: .*raise max\.message\.bytes of the topic"):
        load(target, frame(spark, TERMINALS, [*rows, (999, "y" * 30_000, None, True)]))
    assert contents(cluster, topic) == {}
    partitions = cluster.topics([topic])[topic].all()
    assert cluster.stable_offsets(partitions) == cluster.high_watermarks(partitions)
    found, _ = load(entries(directory=directory), frame(spark, TERMINALS, rows))  # in batches that the topic takes
    assert counted(found) == {"insert": 300}
    assert len(contents(cluster, topic)) == 300


def test_what_others_write_while_it_is_compared(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget]
) -> None:
    rows = frame(spark, TERMINALS, [(1, "A", None, True), (2, "B", None, True)])
    directory = Directory(topic_name(entries()), writable=True)
    with DirectoryWriter(cluster.properties(), directory) as writer:
        early, late = entries(), entries()
        assert counted(early.compare(rows, Mode.UPSERT)) == {"insert": 2}
        writer.put("3", {"id": 3})
        early.write()  # nothing of it was touched
        assert counted(late.compare(rows, Mode.UPSERT)) == {"unchanged": 2}
        other = frame(spark, TERMINALS, [(1, "C", None, True), (3, "C", None, True)])
        late.compare(other, Mode.UPSERT)
        writer.put("3", {"id": 3, "mine": True})
        with pytest.raises(CompactoryError, match="somebody wrote keys of this load while it was compared"):
            late.write()
    early.close()
    late.close()
    now = {key: value for key, (_, value, _) in contents(cluster, directory.topic).items()}
    assert now[b"3"] == b'{"id":3,"mine":true}'
    assert b'"A"' in (now[b"1"] or b"")


@pytest.mark.parametrize("key", ["1", "3"])
def test_what_others_write_while_it_is_sent(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """A service's record is newer than the comparison: the load must not be the later one of its key."""
    target = entries()
    topic = topic_name(target)
    target.compare(frame(spark, TERMINALS, [(1, "A", None, True), (2, "B", None, True)]), Mode.UPSERT)
    made = Sending._record
    with DirectoryWriter(cluster.properties(), Directory(topic, writable=True)) as writer:

        def record(self: Sending, outgoing: Any) -> Any:
            writer.put(key, {"id": int(key), "mine": True})
            return made(self, outgoing)

        monkeypatch.setattr(Sending, "_record", record)
        if key == "3":
            target.write()
        else:
            with pytest.raises(CompactoryError, match="somebody wrote keys of this load while it was sent"):
                target.write()
    target.close()
    now = {name: value for name, (_, value, _) in contents(cluster, topic).items()}
    assert now[key.encode()] == b'{"id":%s,"mine":true}' % key.encode()
    assert now.keys() == ({b"1", b"2", b"3"} if key == "3" else {b"1"})


def test_of_two_loads_at_once_the_later_to_write_finds_out(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget]
) -> None:
    one, two = entries(), entries()
    one.compare(frame(spark, TERMINALS, [(1, "one", None, True)]), Mode.UPSERT)
    two.compare(frame(spark, TERMINALS, [(1, "two", None, True)]), Mode.UPSERT)
    one.write()
    with pytest.raises(CompactoryError, match="somebody wrote keys of this load"):
        two.write()
    one.close()
    two.close()
    ((_, value, _),) = contents(cluster, topic_name(one)).values()
    assert b'"one"' in (value or b"")


def test_what_is_sent_is_what_was_compared(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget]
) -> None:
    """Tasks that are lost are run again, over files that may be others by then: the load is given up."""
    target = entries()
    target.compare(frame(spark, TERMINALS, [(1, "one", None, True)]), Mode.UPSERT)
    assert target._found is not None
    target._found.tally.count(Change.INSERT, 1)
    with pytest.raises(CompactoryError, match="2 records differed when they were compared, and 1 now; nothing was"):
        target.write()
    target.close()
    assert contents(cluster, topic_name(target)) == {}


def test_a_load_beyond_one_transaction_takes_several(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is whole; somebody else's record between two of them ends the load, and the next run sends the rest."""
    monkeypatch.setattr(sending, "_TOGETHER", 100)
    rows = frame(spark, TERMINALS, [(number, "A", None, True) for number in range(250)])
    target, committed = entries(), []
    topic = topic_name(target)
    publish = Publisher.publish

    def publish_and_look(publisher: Publisher, *given: Any) -> None:
        publish(publisher, *given)
        committed.append(len(contents(cluster, topic)))
        if len(committed) == 1:
            writer.put("1000", {"id": 1000})

    monkeypatch.setattr(Publisher, "publish", publish_and_look)
    with DirectoryWriter(cluster.properties(), Directory(topic, writable=True)) as writer:
        with pytest.raises(CompactoryError, match="while it was sent; 100 of 250 records were written; run it again"):
            load(target, rows)
        assert committed == [100]
        assert len(contents(cluster, topic)) == 101
        found, _ = load(entries(), rows)
    assert committed == [100, 201, 251]
    assert counted(found) == {"unchanged": 100, "insert": 150}
    assert contents(cluster, topic).keys() == {b"%d" % number for number in (*range(250), 1000)}


def test_several_transactions_count_copies_and_marks(
    spark: SparkSession, cluster: Kafka, entries: Callable[..., KafkaTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_TOGETHER", 3)
    topic = topic_name(entries())
    producer = cluster.producer({}, {}, print)
    for number in range(10):
        producer.produce(topic, b'{"id":%d}' % number, b"%d" % number, partition=number % 3)
    producer.flush(10)
    rows = frame(spark, TERMINALS, [(number, "A", None, True) for number in range(10)])
    load(entries(), rows)
    found, _ = load(entries(), rows)
    assert counted(found) == {"unchanged": 10}
    assert living(cluster, topic) == {(key, partition_of(key, 3)) for key in map(b"%d".__mod__, range(10))}


@pytest.mark.proof
@pytest.mark.timeout(180)
def test_a_load_that_is_killed_is_not_there_and_the_next_one_ends_right(
    spark: SparkSession, cluster: Kafka, unique: Callable[[str], str]
) -> None:
    topic = topic_of(cluster, unique("mortal"))
    producer = cluster.producer({}, {}, print)
    producer.produce(topic, b'{"id":1,"name":"old"}', b"1", partition=partition_of(b"1", 3))
    producer.flush(10)
    command = [sys.executable, "-m", "tests.spark.mortal_load", cluster.bootstrap, topic, "500"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    partitions = cluster.topics([topic])[topic].all()
    ends = cluster.high_watermarks(partitions)
    assert sum(ends.values()) > 400  # it had sent them
    assert sum(cluster.stable_offsets(partitions).values()) <= 1  # and nobody sees one
    target = KafkaTarget(
        spark=spark, kafka=cluster, directory=Directory(topic), connector=None, types=mortal_load.TYPES, key=["id"]
    )
    found, _ = load(target, spark.range(450).selectExpr("id", "concat('second ', id) AS name"), Mode.REPLACE)
    assert counted(found) == {"insert": 449, "update": 1}
    now = {key: value for key, (_, value, _) in contents(cluster, topic).items()}
    assert now == {b"%d" % n: b'{"id":%d,"name":"second %d"}' % (n, n) for n in range(450)}


# Whose topic it is


@pytest.fixture
def mastered(spark: SparkSession, cluster: Kafka, database: str, unique: Callable[[str], str]) -> Callable[..., Any]:
    """A table with one row, and its connector: ``mastered()`` is a load into its topic, ``mastered.connector`` it."""
    prefix = unique("mastered") + "-"
    topic_of(cluster, f"{prefix}t")
    connector = config(keyed(database, "timestamp+incrementing") | {"topic.prefix": prefix}, name=prefix)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(TABLE)
        sql.execute("INSERT INTO t VALUES (1, 'table', 1.5, true, now())")

    def make(**changes: Any) -> KafkaTarget:
        given = {"directory": Directory(f"{prefix}t"), "connector": connector, "types": {}, **changes}
        return KafkaTarget(spark=spark, kafka=cluster, **given)

    make.connector = connector  # type: ignore[attr-defined]
    return make


LOADED = TERMINALS | {"changed": "timestamp"}
MOMENT = datetime.fromisoformat("2024-02-29 01:02:03.5")
ROWS = [(1, "load", Decimal("2.50"), True, MOMENT), (9, "load", None, True, MOMENT)]


def values(cluster: Kafka, target: KafkaTarget) -> dict[bytes, bytes | None]:
    return {key: value for key, (_, value, _) in contents(cluster, topic_name(target)).items() if value is not None}


def test_the_topic_of_a_source_is_not_loaded(spark: SparkSession, cluster: Kafka, mastered: Any) -> None:
    """Guarantee 11."""
    connector, rows = mastered.connector, frame(spark, LOADED, ROWS)
    stop = threading.Event()
    thread = threading.Thread(target=Source(connector, cluster).run, args=[stop])
    thread.start()
    wait_until(lambda: values(cluster, mastered()), 30, "the table's row")
    with pytest.raises(LeaseLost, match=r"of which a source is running: .*load into Postgres"):
        _ = mastered().columns
    with pytest.raises(LeaseLost):
        load(mastered(), rows)
    stop.set()
    thread.join(30)
    table = values(cluster, mastered())
    for target in (
        mastered(),
        mastered(connector=None, types=LOADED, key=["id"]),
    ):  # also where nobody names the connector
        with pytest.raises(ConfigError, match=r"is that of connector '.*' \(table .*\.public\.t\).*offsets reset"):
            _ = target.columns
    stored = [item for item in read_offsets(cluster) if item.connector == connector.name]
    reset = [OffsetChange(key=item.key, table=item.table, topic=None, previous=item, offset=None) for item in stored]
    edit_offsets(connector, cluster, lambda _stored: reset, new_edit("reset"), lambda: None)
    rejected = spark.createDataFrame([(1,)], "id bigint")
    found, _ = load(mastered(), rows.where("id > 1"), Mode.REPLACE, rejected)
    assert counted(found) == {"insert": 1}
    found, _ = load(mastered(), rows, Mode.REPLACE)
    assert counted(found) == {"update": 1, "unchanged": 1}
    assert values(cluster, mastered())[b"9"].startswith(b'{"id":9,"acquirer":"load","limit_":null')
    Source(connector, cluster).run(threading.Event(), once=True, timeout=20)
    assert values(cluster, mastered()) == table  # it is the table's again


def test_a_source_that_starts_meanwhile_waits(spark: SparkSession, cluster: Kafka, mastered: Any) -> None:
    """Guarantee 11."""
    source, stop = Source(mastered.connector, cluster), threading.Event()
    target = mastered()
    target.compare(frame(spark, LOADED, ROWS), Mode.UPSERT)
    thread = threading.Thread(target=source.run, args=[stop])
    thread.start()
    wait_until(lambda: source.status().state is SourceState.STANDBY, 30, "the source waits")
    assert target.write().counts[Change.INSERT] == 2
    assert set(values(cluster, target)) == {b"1", b"9"}
    target.close()
    wait_until(lambda: b'"table"' in values(cluster, target).get(b"1", b""), 30, "the table's row")
    stop.set()
    thread.join(30)


def test_a_load_that_lost_its_lease_writes_nothing(
    spark: SparkSession, cluster: Kafka, mastered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 11."""
    target = mastered()
    target.compare(frame(spark, LOADED, ROWS), Mode.UPSERT)
    others: list[Publisher] = []
    records = Sending._records

    def overtaken(*given: Any) -> Iterator[Any]:
        yield from records(*given)
        others.append(publisher_of(mastered.connector, cluster))
        others[0].open()

    monkeypatch.setattr(Sending, "_records", overtaken)
    with pytest.raises(LeaseLost, match="another load, or a source, took over while this load was sent; nothing"):
        target.write()
    target.close()
    assert contents(cluster, topic_name(target)) == {}
    others[0].close()


def test_while_postgres_is_away_the_rules_say_what_columns_are(
    spark: SparkSession, cluster: Kafka, mastered: Any
) -> None:
    away = parse_url("postgresql://nobody@127.0.0.1:1/none")
    connector = replace(mastered.connector, connection=away)
    with pytest.raises(ConfigError, match="of type time with time zone, and it does not answer"):
        _ = mastered(connector=connector, types=LOADED | {"at": "timetz"}).columns
    schemas = replace(connector, value_converter=JsonConverter(schemas_enable=True))
    with pytest.raises(ConfigError, match="only it knows which columns may be null"):
        _ = mastered(connector=schemas, types=LOADED).columns
    load(mastered(), frame(spark, LOADED, ROWS))
    found, _ = load(mastered(connector=connector, types=LOADED), frame(spark, LOADED, ROWS), Mode.REPLACE)
    assert counted(found) == {"unchanged": 2}


def test_types_that_only_postgres_can_spell_are_refused(mastered: Any, database: str, cluster: Kafka) -> None:
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("ALTER TABLE t ADD COLUMN price money")
    with pytest.raises(
        ConfigError, match="column price: only Postgres itself knows how it spells values of type money"
    ):
        _ = mastered().columns


def test_offsets_of_another_topic_of_that_name_own_nothing() -> None:
    offset = SourceOffset(
        identity=Identity(system_identifier="", timeline=0, postmaster_start="", statistics_start="", table_oid=0),
        topic=("t", "first"),
    )
    stored = StoredOffset(key=b"k", connector="c", table="d.public.t", written_at=0.0, value=b"{}", offset=offset)
    assert list(owners([stored], "t", "second", None)) == []
    assert list(owners([stored], "t", "first", None)) == ["connector 'c' (table d.public.t)"]
    assert list(owners([stored], "t", None, None)) == ["connector 'c' (table d.public.t)"]
    assert list(owners([stored], "u", "first", None)) == []
    assert list(owners([replace(stored, offset=None, problem="newer")], "u", "first", b"k")) != []
    assert list(owners([replace(stored, value=None, offset=None)], "t", "first", b"k")) == []
