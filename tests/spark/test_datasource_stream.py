"""Streams of a topic: no record is missed or doubled over a restart, and a topic that is another one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compactory_connectors.spark import register
from tests.store.topics import Topics, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def run(spark: SparkSession, address: str, topic: str, folder: Path, **options: str) -> list[tuple[str, str, int]]:
    """What a stream of all that is available adds to the folder: operation, key, offset."""
    register(spark)
    reader = spark.readStream.format("compactory").option("kafka.bootstrap.servers", address)
    frame = reader.options(topic=topic, **options).schema("n bigint, _op string, _key string, _offset bigint").load()
    out = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = out.option("path", str(folder / "out")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    rows = spark.read.parquet(str(folder / "out")).collect()
    return sorted(((row._op, row._key, row._offset) for row in rows), key=lambda row: row[2])


def test_each_record_is_a_row_once(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"n": 1}'), ("b", '{"n": 2}'))
    first = [("put", "a", 0), ("put", "b", 1)]
    assert run(spark, topics.address, name, tmp_path, maxOffsetsPerTrigger="1") == first
    topics.produce(name, ("a", None))
    assert run(spark, topics.address, name, tmp_path) == [*first, ("delete", "a", 2)]

    topics.delete(name)
    eventually(lambda: name not in topics.admin.list_topics(timeout=5).topics)
    topics.forget_producer()
    topics.create(name=name)
    topics.produce(name, *[(f"k{number}", '{"n": 1}') for number in range(5)])
    with pytest.raises(Exception, match="deleted and created again since this position; the stream can't go on"):
        run(spark, topics.address, name, tmp_path)


def test_positions_that_are_gone_are_refused(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    name = topics.create(cleanup_policy="delete", retention_ms="-1")
    topics.produce(name, ("a", '{"n": 1}'))
    run(spark, topics.address, name, tmp_path)
    topics.produce(name, ("a", '{"n": 2}'), ("a", '{"n": 3}'))
    topics.cut(name, 2)
    with pytest.raises(Exception, match="begins at offset 2: the records from offset 1 on are gone"):
        run(spark, topics.address, name, tmp_path)
