"""DataFrames written by `df.write` into a directory mastered in Kafka, through a server that writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from compactory import Directory, EntryMissing, Index
from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory_api.http.access import Access, Scope, Tokens
from compactory_client import Client, Entries
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.spark import register
from compactory_connectors.spark.datasource.entry_writer import EntryWriter, entry_writer
from compactory_connectors.spark.into_topic import KafkaTarget
from compactory_mastered import WriteRules
from tests.api.conftest import serve, topics  # noqa: F401 (fixtures)
from tests.api.serving import Serving
from tests.spark.test_stream_writer import Stream
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = {"properties": {"seats": {"type": "integer", "minimum": 0}}}
RULES = WriteRules(schema=SCHEMA, unique=(("email",),), key_from=("email",), internal=("secret",))


@pytest.fixture
def tenants(topics: Topics) -> Directory[dict[str, Any]]:  # noqa: F811
    return Directory("tenants", topic=topics.create(3), indexes=[Index("email", unique=True)], rules=RULES)


@pytest.fixture
def serving(serve: Callable[..., Serving], tenants: Directory[Any]) -> Serving:  # noqa: F811
    return serve(tenants, access=Access(anonymous=Scope.WRITE))


@pytest.fixture
def entries(serving: Serving) -> Iterator[Entries[Any]]:
    with Client(f"http://127.0.0.1:{serving.port}") as client:
        yield client.directory("tenants")


@pytest.fixture
def write(spark: SparkSession, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Write a frame into the directory."""
    register(spark)

    def save(frame: DataFrame, **options: str) -> None:
        if "url" not in options:
            options["url"] = f"http://127.0.0.1:{request.getfixturevalue('serving').port}"
        given = {"directory": "tenants", **options}
        frame.write.format("compactory").mode("append").options(**given).save()

    return save


def test_rows_are_written_as_a_put_writes_them(
    spark: SparkSession, write: Callable[..., None], entries: Entries[Any], tenants: Directory[Any], kafka: str
) -> None:
    """Guarantee 17: the same keys, partitions and bytes as of a PUT, and tombstones; a row without an entry is done."""
    entries.put("gone", {"email": "gone@x"})
    document = {
        "email": "ä@x", "fee": "1.50", "rate": 0.1, "raw": "AP8=", "day": "2024-02-29",
        "at": "2024-02-29T11:00:00.123456+00:00", "local": "2024-02-29T12:00:00", "seats": 3, "on": True,
        "tags": [{"a": 1}, {"a": 2, "b": "x"}], "names": {"de": "Ä"},
    }  # fmt: skip
    frame = spark.sql("""
        SELECT 'k1' AS _key, CAST(NULL AS string) AS _op, 'ä@x' AS email, 1.50BD AS fee, CAST(0.1 AS float) AS rate,
            unhex('00ff') AS raw, date '2024-02-29' AS day, timestamp '2024-02-29 12:00:00.123456+01:00' AS at,
            timestamp_ntz '2024-02-29 12:00:00' AS local, 3 AS seats, true AS on,
            array(named_struct('a', 1, 'b', CAST(NULL AS string)), named_struct('a', 2, 'b', 'x')) AS tags,
            map('de', 'Ä') AS names, CAST(NULL AS string) AS nothing, 7 AS _partition""")
    removed = spark.createDataFrame([("gone", "delete"), ("never", "delete")], "_key string, _op string")
    write(frame.unionByName(removed, allowMissingColumns=True).repartition(3))
    assert entries.get("k1").value == document
    with pytest.raises(EntryMissing):
        entries.get("gone")
    read = spark.read.format("compactory").option("kafka.bootstrap.servers", kafka).option("topic", tenants.topic)
    entries.delete("k1")
    entries.put("k1", document)
    rows = read.option("raw", "true").load().orderBy("partition", "offset").collect()
    first, tombstone, second = [row for row in rows if bytes(row.key) == b"k1"]
    assert (first.partition, json.loads(first.value), first.value) == (second.partition, document, second.value)
    assert tombstone.value is None
    assert [row.value is None for row in rows if bytes(row.key) == b"gone"] == [False, True]
    assert not [row for row in rows if bytes(row.key) == b"never"]


def test_refused_rows_are_told_and_the_others_are_written(
    spark: SparkSession, write: Callable[..., None], entries: Entries[Any]
) -> None:
    entries.put("a", {"email": "a@x", "secret": "s"})
    rows = [("a", "a@x", 2), ("b", "a@x", 2), ("c", "c@x", -1), ("d", "d@x", 4), ("", "e@x", 1)]
    with pytest.raises(Exception, match="3 rows were refused, and 2 are written") as refused:
        write(spark.createDataFrame(rows[:4], "_key string, email string, seats int").union(
            spark.createDataFrame([("f" * 2_000_000, "f@x", 1)])).repartition(2))  # fmt: skip
    for told in ("b: another entry", "c: seats: the value is less than the minimum of 0"):
        assert told in str(refused.value)
    assert {key: value["seats"] for key, value in entries.items()} == {"a": 2, "d": 4}
    with pytest.raises(Exception, match="is empty"):
        write(spark.createDataFrame(rows[4:], "_key string, email string, seats int"))
    with pytest.raises(Exception, match="column _key is null in a row"):
        write(spark.createDataFrame([(None, "g@x")], "_key string, email string"))
    with pytest.raises(Exception, match="column _op must be put or delete, not 'patch'"):
        write(spark.createDataFrame([("a", "patch")], "_key string, _op string"))
    assert len(list(entries.items())) == 2


@pytest.mark.proof
def test_servers_write_on_while_a_job_does(
    spark: SparkSession, serve: Callable[..., Serving], tenants: Directory[Any], entries: Entries[Any],  # noqa: F811
    write: Callable[..., None],
) -> None:  # fmt: skip
    """Guarantee 18: conditional writes of others and the rows of a job, through two servers, lose nothing."""
    other = serve(tenants, access=Access(anonymous=Scope.WRITE))
    over, begun = Event(), Event()

    def count() -> int:
        stored = entries.put("n", {"seats": 0})
        while not over.is_set():
            stored = entries.put("n", {"seats": stored.value["seats"] + 1}, if_match=stored.etag)
            begun.set()
        return int(stored.value["seats"])

    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(count)
        try:
            assert begun.wait(30)
            frame = spark.range(30_000).selectExpr("concat('t', id) AS _key", "CAST(id AS int) AS seats")
            write(frame.repartition(4), url=f"http://127.0.0.1:{other.port}")
        finally:
            over.set()
        seats = counted.result(30)
    assert seats > 1
    assert entries.get("n").value == {"seats": seats}
    found = dict(entries.items(prefix="t"))
    assert len(found) == 30_000
    assert all(value["seats"] == int(key[1:]) for key, value in found.items())


def test_a_server_that_is_away_in_the_middle_of_a_write(
    serve: Callable[..., Serving],  # noqa: F811
    serving: Serving,
    tenants: Directory[Any],
    kafka: str,
) -> None:
    """What was written is told, and a repeat with the load id writes no row twice."""
    schema = StructType([StructField("_key", StringType()), StructField("seats", IntegerType())])

    def writer(server: Serving) -> EntryWriter:
        options = {"directory": "tenants", "url": f"http://127.0.0.1:{server.port}", "loadId": "night", "timeout": "1"}
        return entry_writer(options, schema, False)

    def rows(first: int) -> pa.RecordBatch:
        numbers = range(first, first + 10_000)
        return pa.RecordBatch.from_pydict({"_key": [f"t{number}" for number in numbers], "seats": list(numbers)})

    def until_stopped() -> Iterator[pa.RecordBatch]:
        yield rows(0)
        serving.stop()
        yield rows(10_000)

    interrupted = writer(serving)
    sent = interrupted.write(until_stopped())
    with pytest.raises(Unreachable, match=r"10,000 rows are written, and others may not be: .* the same load id"):
        interrupted.commit([sent])
    repeated = writer(serve(tenants, access=Access(anonymous=Scope.WRITE)))
    repeated.commit([repeated.write(iter([rows(0), rows(10_000)]))])
    keys = [message.key() for message in read(Kafka(kafka), tenants.topic)]
    assert len(keys) == len(set(keys)) == 20_000


def test_rows_without_keys_are_posted_and_a_load_id_writes_once(
    spark: SparkSession, write: Callable[..., None], entries: Entries[Any]
) -> None:
    posted = spark.createDataFrame([("p@x", 1)], "email string, seats int")
    write(posted)
    write(posted)
    [(derived, value)] = entries.items()
    assert (value, len(derived)) == ({"email": "p@x", "seats": 1}, 32)
    frame = spark.createDataFrame([("a", 1), ("b", 2)], "_key string, seats int")
    write(frame, loadId="night")
    entries.put("a", {"seats": 9})
    write(frame, loadId="night")
    assert (entries.get("a").value, entries.get("b").value) == ({"seats": 9}, {"seats": 2})
    write(frame)
    assert entries.get("a").value == {"seats": 1}
    with pytest.raises(Exception, match="b: the Idempotency-Key was used for another request"):
        write(spark.createDataFrame([("b", 3)], "_key string, seats int"), loadId="night")


def test_micro_batches_of_a_stream_are_written_once(
    spark: SparkSession,
    entries: Entries[Any],
    serving: Serving,
    tmp_path: Path,
) -> None:
    """Guarantee 17: also where Spark repeats the last micro-batch after a crash."""
    register(spark)
    stream = Stream(spark, tmp_path, directory="tenants", url=f"http://127.0.0.1:{serving.port}")
    frame = stream.rows("_key", "rate")
    assert stream.run(frame) == [(0, 2), (1, 2)]
    assert {key: value["rate"] for key, value in entries.items()} == {"a": "1.50", "b": "3.00", "c": "4.00"}
    entries.put("c", {"rate": "9.00"})
    token = entries.get("c").token
    stream.forget_last_commit()
    stream.add(("d", "5.00"))
    assert stream.run(frame) == [(1, 2), (2, 1)]
    assert {key: value["rate"] for key, value in entries.items()} == {
        "a": "1.50", "b": "3.00", "c": "9.00", "d": "5.00"
    }  # fmt: skip
    assert entries.get("c").token == token, "the repeat has written nothing"


def test_the_topic_of_a_directory_is_no_plain_topic(
    spark: SparkSession, entries: Entries[Any], tenants: Directory[Any], kafka: str
) -> None:
    register(spark)
    entries.put("a", {"seats": 1})
    message = rf"topic '{tenants.topic}' is that of a directory mastered in Kafka, as '{tenants.topic}-writes' shows"
    writer = spark.sql("SELECT 'b' AS _key").write.format("compactory").mode("append")
    with pytest.raises(Exception, match=message):
        writer.options(**{"topic": tenants.topic, "kafka.bootstrap.servers": kafka}).save()
    plain = Directory(tenants.topic)
    with pytest.raises(ConfigError, match=message):
        _ = KafkaTarget(spark=spark, kafka=Kafka(kafka), directory=plain, types={"id": "text"}, key=["id"]).columns
    assert dict(entries.items()) == {"a": {"seats": 1}}


def test_what_is_wrong_is_told_before_anything_is_sent(spark: SparkSession, write: Callable[..., None]) -> None:
    frame = spark.sql("SELECT 1 AS _key, 'x' AS _error, interval 1 day AS span, map(1, 'x') AS numbers")
    with pytest.raises(Exception, match="column _key must be of type string: cast it") as refused:
        write(frame, url="http://127.0.0.1:1", tokn="t", timeout="long", ignoreNullFields="no")
    for problem in (
        "no option 'tokn' for writing; did you mean token",
        "option timeout must be a number",
        "option ignoreNullFields must be true or false",
        "column _error can't be written: drop it",
        "column span: JSON has nothing for type interval day",
        "column numbers: JSON has nothing for type map<int,string>",
    ):
        assert problem in str(refused.value)
    good = spark.sql("SELECT 'a' AS _key, double('NaN') AS rate")
    for options, said in (
        ({"url": "file:///x"}, "url: must be http://HOST"),
        ({"url": "http://127.0.0.1:1", "timeout": "0.1"}, "the server was not reached"),
    ):
        with pytest.raises(Exception, match=said):
            write(good.drop("rate"), **options)
    with pytest.raises(Exception, match="'a': rate would read back as something else"):
        write(good, url="http://127.0.0.1:1")
    with pytest.raises(Exception, match="column _op needs column _key"):
        write(spark.sql("SELECT 'delete' AS _op"), url="http://127.0.0.1:1")


def test_a_server_that_does_not_let_the_job_write_ends_it(
    spark: SparkSession,
    serve: Callable[..., Serving],  # noqa: F811
    tenants: Directory[Any],
    write: Callable[..., None],
) -> None:
    serving = serve(tenants, access=Access(Tokens(write="good")))
    url = f"http://127.0.0.1:{serving.port}"
    frame = spark.sql("SELECT 'a' AS _key, CAST(NULL AS int) AS nothing")
    with pytest.raises(Exception, match="token"):
        write(frame, url=url, token="bad")
    write(frame, url=url, token="good", ignoreNullFields="false")
    with Client(url, token="good") as client:
        assert client.directory("tenants").get("a").value == {"nothing": None}
