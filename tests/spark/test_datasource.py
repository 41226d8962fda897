"""Directories and topics as DataFrames: the rows are what stores find, on a real Kafka."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory.watch.change import Cursor
from compactory_connectors.spark import infer_schema, register
from compactory_connectors.spark.datasource.batch import BatchReader
from compactory_connectors.spark.datasource.columns import checked_fields
from compactory_connectors.spark.datasource.options import ReadOptions
from compactory_connectors.spark.datasource.source import CompactorySource
from compactory_connectors.spark.failures import spark_failures
from compactory_connectors.spark.registration import _source_class
from compactory_connectors.spark.topic.reading import RecordsGone
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Read = Callable[..., "DataFrame"]


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


@pytest.fixture
def read(spark: SparkSession, topics: Topics) -> Read:
    register(spark)

    def load(directory: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("compactory").option("kafka.bootstrap.servers", topics.address)
        reader = reader.option("directory", directory).options(**options)
        return (reader.schema(schema) if schema is not None else reader).load()

    return load


def by_key(frame: DataFrame) -> dict[str, Row]:
    rows = frame.collect()
    found = {row["_key"]: row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def test_a_directory_has_the_newest_values_in_columns_of_a_sample(topics: Topics, read: Read) -> None:
    name = topics.create(3)
    topics.produce(name, ("T1", '{"id": 1, "isActive": true, "name": "old"}'), partition=0, timestamp=1000)
    topics.produce(name, ("T1", '{"id": 1, "isActive": true, "name": "жук"}'), partition=0, timestamp=2500)
    topics.produce(name, ("T2", '{"id": 2, "isActive": false}'), ("gone", "{}"), ("gone", None), partition=1)
    topics.produce(name, ("T3", '{"id": 3.5, "tags": ["a"], "at": {"lat": 1}}'), partition=1)
    topics.abort(name, ("T1", '{"id": "aborted"}'), ("T4", '{"id": "aborted"}'), partition=0)

    frame = read(name, active="isActive", keys="single")

    assert dict(frame.dtypes) == {
        "id": "double", "isActive": "boolean", "name": "string", "tags": "array<string>", "at": "struct<lat:bigint>",
        "_key": "string", "_op": "string", "_partition": "int", "_offset": "bigint", "_timestamp": "timestamp",
        "_error": "string",
    }  # fmt: skip
    rows = by_key(frame)
    assert set(rows) == {"T1", "T3"}
    assert (rows["T1"].name, rows["T1"].id, rows["T1"]._offset, rows["T1"]._error) == ("жук", 1.0, 1, None)
    assert rows["T1"]._timestamp == datetime.fromisoformat("1970-01-01T00:00:02.500")
    assert rows["T3"].tags == ["a"]
    assert rows["T3"].at.lat == 1
    assert frame.count() == 2


def test_fields_that_get_no_column_are_named(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    name = topics.create()
    topics.produce(name, ("T1", '{"id": 1, "ID": 2, "_key": 3}'))

    found = CompactorySource({"kafka.bootstrap.servers": topics.address, "directory": name}).schema()

    assert found.names[:2] == ["id", "_key"], "the second one is the record's"
    assert "fields without a column: ID, _key;" in caplog.text


def test_a_topic_is_no_schema_registrys_for_the_sake_of_a_partition_with_one_bad_value(
    topics: Topics, read: Read
) -> None:
    name = topics.create(2)
    topics.produce(name, ("bad", b"\0\0\0\0\1\2"), partition=0)
    with pytest.raises(ConfigError, match="set option valueFormat to avro or json-schema"):
        CompactorySource({"kafka.bootstrap.servers": topics.address, "directory": name}).schema()
    topics.produce(name, ("good", '{"id": 1}'), partition=1)
    rows = by_key(read(name))
    assert (rows["good"].id, rows["good"]._error) == (1, None)
    assert rows["bad"].id is None
    assert rows["bad"]._error


def test_a_key_in_two_partitions_is_there_once(topics: Topics, read: Read) -> None:
    """Guarantee of a directory: the newer timestamp wins, then the higher partition; a partitioner is not trusted."""
    name = topics.create(2)
    topics.produce(name, ("a", '{"v": 1}'), ("gone", '{"v": 1}'), partition=0, timestamp=2000)
    topics.produce(name, ("a", '{"v": 2}'), partition=1, timestamp=1000)
    topics.produce(name, ("gone", None), partition=1, timestamp=3000)

    for options in ({}, {"keys": "any", "minPartitions": "3"}):
        assert {key: row.v for key, row in by_key(read(name, "v bigint, _key string", **options)).items()} == {"a": 1}
    with pytest.raises(CompactoryError, match="set option keys to any"), spark_failures():
        read(name, "v bigint", keys="java").collect()


def test_a_schema_chooses_fields_and_their_types(topics: Topics, read: Read) -> None:
    name = topics.create()
    value = (
        '{"day": "2026-03-01", "since": "2026-03-01T10:00:00+02:00", "ms": 1500, "days": 1, "fee": "12.50", "small": 7,'
        ' "deep": {"at": "1970-01-02"}, "other": {"left": "out"}}'
    )
    topics.produce(name, ("a", value))
    schema = (
        "day date, since timestamp, ms timestamp, days date, fee decimal(10,2), small smallint, deep struct<at: date>,"
        " missing string, _value binary"
    )

    [row] = read(name, schema).collect()

    assert row.asDict(recursive=True) == {
        "day": date(2026, 3, 1),
        "since": datetime.fromisoformat("2026-03-01T08:00:00"),
        "ms": datetime.fromisoformat("1970-01-01T00:00:01.500"),
        "days": date(1970, 1, 2),
        "fee": Decimal("12.50"),
        "small": 7,
        "deep": {"at": date(1970, 1, 2)},
        "missing": None,
        "_value": value.encode(),
    }


def test_values_that_do_not_fit_are_told_and_never_null_in_silence(topics: Topics, read: Read) -> None:
    name = topics.create()
    topics.produce(name, ("good", '{"n": 1}'), ("text", '{"n": "x"}'), ("large", '{"n": 70000}'), ("bad", "no JSON"))
    topics.produce(name, (b"\xff", '{"n": 1}'))

    rows = {row._offset: row for row in read(name, "n smallint, _offset bigint, _error string").collect()}

    assert [rows[offset].n for offset in range(4)] == [1, None, None, None]
    assert [rows[offset]._error for offset in range(3)] == [
        None,
        "field 'n' is not of type smallint",
        "field 'n' is not of type smallint",
    ]
    assert rows[3]._error
    assert rows[4]._error == "the key is not UTF-8"
    with (
        pytest.raises(CompactoryError, match="partition 0, offset 1: field 'n' is not of type smallint"),
        spark_failures(),
    ):
        read(name, "n smallint").collect()


def test_raw_records_are_all_that_were_committed(topics: Topics, read: Read) -> None:
    from confluent_kafka import Producer

    name = topics.create(2, cleanup_policy="delete", retention_ms="-1")
    topics.produce(name, ("a", "1"), ("a", None), (None, "2"), partition=0, timestamp=1000)
    topics.abort(name, ("a", "aborted"), partition=0)
    producer = Producer({"bootstrap.servers": topics.address, "log_level": 0})
    producer.produce(name, "h", "b", partition=1, timestamp=2000)
    producer.flush()

    frame = read(name, raw="true")

    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp"]
    found = {(row.partition, row.offset): (row.key, row.value) for row in frame.collect()}
    assert found == {(0, 0): (b"a", b"1"), (0, 1): (b"a", None), (0, 2): (None, b"2"), (1, 0): (b"b", b"h")}
    assert sorted(row.offset for row in read(name, "offset bigint", raw="true", minPartitions="3").collect()) == [
        0,
        0,
        1,
        2,
    ]


def test_a_text_that_may_be_a_number_or_base64_is_no_decimal_until_somebody_says_which(
    topics: Topics, read: Read
) -> None:
    """The text 1008 is 1008.00, or -26672.04 as Kafka Connect writes decimals unless it is told otherwise."""
    name = topics.create()
    topics.produce(name, ("a", '{"p": "1008"}'), ("b", '{"p": "10.5"}'), ("c", '{"p": 7}'), ("d", '{"p": "AfQ="}'))

    def prices(**options: str) -> dict[str, Decimal | None]:
        rows = by_key(read(name, "p decimal(10,2), _key string, _error string", **options)).values()
        assert all((row.p is None) == (row._error is not None) for row in rows)
        return {row._key: row.p for row in rows}

    unsaid = by_key(read(name, "p decimal(10,2), _key string, _error string"))
    assert "say how the topic has decimals by option decimal = number or base64" in unsaid["a"]._error
    assert prices() == {"a": None, "b": Decimal("10.50"), "c": Decimal(7), "d": None}
    assert prices(decimal="number") == {"a": Decimal(1008), "b": Decimal("10.50"), "c": Decimal(7), "d": None}
    assert {k: v for k, v in prices(decimal="base64").items() if k in "ad"} == {
        "a": Decimal("-26672.04"),
        "d": Decimal(5),
    }


def test_a_field_may_have_the_name_of_a_column_of_raw_records(topics: Topics, read: Read) -> None:
    """A filter on a value's field says nothing about the record: no row may be lost, and none may fail."""
    name = topics.create()
    topics.produce(name, ("T1", '{"key": "abc", "timestamp": "2030", "offset": 90, "partition": 7}'), timestamp=1000)
    columns = "key string, timestamp string, offset bigint, partition int, _key string"
    for options in ({}, {"versions": "true"}):
        frame = read(name, columns, **options)
        for query in ("key = 'abc'", "timestamp > '2024'", "offset > 50", "partition IN (7, 8)"):
            assert [row._key for row in frame.where(query).collect()] == ["T1"], (query, options)
        assert frame.where("_key = 'abc'").count() == 0


def test_filters_spare_reading_and_change_no_result(topics: Topics, read: Read) -> None:
    name = topics.create(2)
    pairs = [(f"k{number}", f'{{"n": {number}}}') for number in range(20)]
    for number, pair in enumerate(pairs):
        topics.produce(name, pair, partition=number % 2, timestamp=1000 * (number + 1))

    raw = read(name, raw="true")
    queries = {
        "offset >= 3 AND offset < 5": 4,
        "partition = 1 AND offset > 7": 2,
        "offset IN (1, 4)": 4,
        "timestamp >= timestamp'1970-01-01 00:00:19'": 2,
        "timestamp > timestamp'1970-01-01 00:00:19'": 1,
        "key = cast('k3' AS binary)": 1,
        "partition = 0 AND partition = 1": 0,
        "NOT offset = 3": 18,
        "offset IS NULL": 0,
    }
    for query, rows in queries.items():
        assert len(raw.where(query).collect()) == rows, query
    typed = read(name, "n bigint, _key string, _timestamp timestamp", keys="single")
    assert [row.n for row in typed.where("_key IN ('k3', 'none')").collect()] == [3]
    assert typed.where("_timestamp >= timestamp'1970-01-01 00:00:19'").count() == 2
    placed = read(name, "n bigint, _partition int, _offset bigint", keys="single")
    assert sorted(row.n for row in placed.where("_partition = 1 AND _offset >= 8").collect()) == [17, 19]
    assert sorted(row.n for row in placed.where("_offset < 1").collect()) == [0, 1]


def test_several_topics_are_read_at_once(spark: SparkSession, topics: Topics) -> None:
    first, second = topics.create(), topics.create(2)
    topics.produce(first, ("a", '{"n": 1}'), ("a", '{"n": 2}'))
    topics.produce(second, ("a", '{"m": "x"}'))
    register(spark)
    reader = spark.read.format("compactory").option("kafka.bootstrap.servers", topics.address)

    frame = reader.option("subscribe", f"{first}, {second}").load()
    matching = reader.option("subscribePattern", f"{first}|{second}").option("subscribe", "").option("raw", "true")

    assert {(row._topic, row._key, row.n, row.m) for row in frame.collect()} == {
        (first, "a", 2, None),
        (second, "a", None, "x"),
    }
    assert sorted((row.topic, row.offset) for row in matching.load().collect()) == sorted(
        [(first, 0), (first, 1), (second, 0)]
    )


def test_the_schema_of_all_values_is_found_by_tasks(spark: SparkSession, topics: Topics) -> None:
    name = topics.create(2)
    topics.produce(
        name, ("a", '{"n": 1, "x y": true, "at": {"OBJECT<": 1.5}}'), ("bad", "no JSON"), ("list", "[1]"), ("b", None)
    )
    topics.produce(name, ("c", '{"n": "text", "none": null, "tags": [1]}'), (b"\xff", b'{"n": "\xff"}'), partition=1)

    found = infer_schema(spark, name, kafka=topics.address)

    assert (
        found.simpleString() == "struct<at:struct<OBJECT<:double>,n:string,none:string,tags:array<bigint>,x y:boolean>"
    )
    assert infer_schema(spark, topics.create(), kafka=topics.address).fields == []


def test_the_schema_has_fields_of_older_values_where_those_are_read(spark: SparkSession, topics: Topics) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"former": 1}'), ("a", '\n\t {"n": 2}'), ("gone", '{"x": 1}'), ("gone", None))

    assert infer_schema(spark, name, kafka=topics.address).simpleString() == "struct<n:bigint>"
    all_of_it = infer_schema(spark, name, kafka=topics.address, versions=True)
    assert all_of_it.simpleString() == "struct<former:bigint,n:bigint,x:bigint>"


def test_a_view_of_sql_is_a_directory(spark: SparkSession, topics: Topics) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"n": 1}'), ("b", '{"n": 2}'))
    register(spark)
    spark.sql(
        f"CREATE TEMPORARY VIEW terminals USING compactory OPTIONS (`kafka.bootstrap.servers` '{topics.address}',"
        f" directory '{name}')"
    )
    assert spark.sql("SELECT sum(n) FROM terminals WHERE _key > 'a'").collect()[0][0] == 2


def test_a_worker_without_compactory_is_named(spark: SparkSession) -> None:
    class Missing:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("compactory_connectors.spark.datasource"):
                raise ImportError(name)

    source = _source_class()
    kept = {name: module for name, module in sys.modules.items() if name.startswith("compactory_connectors.spark.data")}
    sys.meta_path.insert(0, Missing())  # type: ignore[arg-type]
    try:
        for name in kept:
            del sys.modules[name]
        with pytest.raises(ImportError, match=f"workers run {sys.executable}, which can't import"):
            source({})
    finally:
        del sys.meta_path[0]
        sys.modules.update(kept)


def test_any_position_can_be_read(topics: Topics, read: Read) -> None:
    name = topics.create(cleanup_policy="delete", retention_ms="-1")
    topics.produce(name, ("a", '{"n": 1}'), timestamp=1000)
    topics.produce(name, ("a", '{"n": 2}'), timestamp=2000)
    topics.produce(name, ("a", '{"n": 3}'), timestamp=3000)
    topic_id = Kafka(topics.address).topics([name])[name].topic_id

    def at(position: str) -> list[Any]:
        return [row.n for row in read(name, "n bigint", at=position).collect()]

    assert at(str(Cursor(topic_id, {0: 2}))) == [2]
    assert at("1970-01-01T00:00:02Z") == [1]
    assert at(datetime.now(UTC).isoformat()) == [3]
    with pytest.raises(ConfigError, match="created again"), spark_failures():
        at("AAAAAAAAAAAAAAAAAAAAAQ;0:1")
    with pytest.raises(ConfigError, match="ends at offset 3, before 4"), spark_failures():
        at(f"{topic_id};0:4")
    topics.cut(name, 1)
    with (
        pytest.raises(ConfigError, match=r"begins at offset 1: .* from offset 0 on are gone"),
        spark_failures(),
    ):
        at(f"{topic_id};0:0")


@pytest.mark.parametrize("versions", ["false", "true"])
def test_records_that_are_deleted_while_they_are_read_fail_the_task_or_are_skipped(
    topics: Topics, versions: str
) -> None:
    name = topics.create(cleanup_policy="delete", retention_ms="-1")
    topics.produce(name, ("a", '{"n": 1}'), ("b", '{"n": 2}'), ("c", '{"n": 3}'), ("d", '{"n": 4}'))
    options = {"kafka.bootstrap.servers": topics.address, "directory": name, "versions": versions}
    schema = StructType().add("n", "long").add("_offset", "long")
    strict = BatchReader(ReadOptions.read(options), schema)
    lenient = BatchReader(ReadOptions.read({**options, "failOnDataLoss": "false"}), schema)
    [piece], [other] = strict.partitions(), lenient.partitions()
    topics.cut(name, 2)
    with pytest.raises(RecordsGone, match=r"from offset 0 on were deleted: .* set option failOnDataLoss to false"):
        list(strict.read(piece))
    rows = [row for batch in lenient.read(other) for row in batch.to_pylist()]
    assert rows == [{"n": 3, "_offset": 2}, {"n": 4, "_offset": 3}]


def test_mistakes_are_refused_with_the_nearest_name(topics: Topics, read: Read) -> None:
    with pytest.raises(ConfigError, match=r"there is no option 'atx'; did you mean at\?"), spark_failures():
        read("nowhere", "n bigint", atx="1").collect()
    given = {"kafka.bootstrap.servers": topics.address, "directory": "nowhere"}
    problems: dict[tuple[str, str], str] = {
        ("startingoffset", "latest"): "there is no option 'startingoffset'; did you mean startingOffsets?",
        ("startingOffsets", "latest"): "option startingOffsets is for spark.readStream only",
        ("raw", "yes"): "option raw must be one of true, false, not 'yes'",
        ("keys", "jaav"): "did you mean java?",
        ("minPartitions", "0"): "option minPartitions must be a whole number from 1 on, not '0'",
    }
    for option, problem in problems.items():
        with pytest.raises(ConfigError) as refused:
            ReadOptions.read({**given, **dict([option])}, "batch")
        assert problem in str(refused.value)
    with pytest.raises(ConfigError, match=r"'_offst': a record has no such column; did you mean _offset\?"):
        checked_fields(StructType().add("_offst", "long"), raw=False)
    with pytest.raises(ConfigError, match="does not exist"), spark_failures():
        read("nowhere", "n bigint").collect()
