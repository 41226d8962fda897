"""Streams of a topic: no record is missed or doubled over kills, and a topic that is another one is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compactory_connectors.spark import register
from tests.spark.conftest import needs_spark
from tests.spark.stream_child import follow
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
    found = run(spark, topics.address, name, tmp_path, failOnDataLoss="false")
    assert found == [("put", "a", 0), ("put", "a", 2)], "what is gone is skipped"


Change = tuple[int, int, str, str, int | None]
"""Partition, offset, operation, key, value."""


def produce(topics: Topics, name: str, first: int, count: int) -> set[Change]:
    """So many changes for each of two partitions, every tenth a removal; what a stream makes of them."""
    for partition in range(2):
        numbers = range(first, first + count)
        topics.produce(name, *[(f"k{n}", f'{{"n": {n}}}' if n % 10 else None) for n in numbers], partition=partition)
    made = [(n, "put", n) if n % 10 else (n, "delete", None) for n in range(first, first + count)]
    return {(partition, n, op, f"k{n}", value) for partition in range(2) for n, op, value in made}


def check(folder: Path, wanted: set[Change]) -> None:
    """Every attempt of a micro-batch has the same changes, no two micro-batches share one, and all are there."""
    batches: dict[int, list[Change]] = {}
    for file in folder.glob("*.json"):
        found = sorted(tuple(change) for change in json.loads(file.read_text()))
        assert batches.setdefault(int(file.name.partition("-")[0]), found) == found, f"{file.name} differs"
    seen = [change for found in batches.values() for change in found]
    assert len(seen) == len(set(seen))
    assert set(seen) == wanted


def test_a_micro_batch_that_is_repeated_has_the_same_changes(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    name = topics.create(2)
    wanted = produce(topics, name, 0, 80)
    for batch in (0, 2):
        with pytest.raises(Exception, match="Stopped"):
            follow(spark, topics.address, name, tmp_path, fail_at=batch)
        wanted |= produce(topics, name, 80 + 40 * batch, 80)
    follow(spark, topics.address, name, tmp_path)
    check(tmp_path, wanted)


def run_and_kill(command: list[str], folder: Path, seconds: float) -> None:
    """Kill the stream so many seconds after its first micro-batch."""
    before = set(folder.glob("*.json"))
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: child.poll() is not None or set(folder.glob("*.json")) > before, 120)
        time.sleep(seconds)
        assert child.poll() is None, "it ended before it could be killed"
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.proof
def test_a_stream_that_is_killed_misses_and_doubles_nothing(topics: Topics, tmp_path: Path) -> None:
    needs_spark()
    name = topics.create(2)
    wanted = produce(topics, name, 0, 400)
    command = [sys.executable, "-m", "tests.spark.stream_child", topics.address, name, str(tmp_path)]
    for turn in range(10):
        run_and_kill(command, tmp_path, random.uniform(0, 1.5))
        wanted |= produce(topics, name, 400 + 300 * turn, 300)
    subprocess.run(command, check=True, timeout=200, stderr=subprocess.DEVNULL)
    check(tmp_path, wanted)
