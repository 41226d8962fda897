"""Streams written by `df.writeStream`: each micro-batch once into a table and a mastered directory, over restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.spark import register
from tests.spark.test_table_writer import sql, staged, tariffs  # noqa: F401 (a fixture)
from tests.store.topics import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SESSIONS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '^compactory-load'"


class Stream:
    """Files as micro-batches of a query; `run` continues it."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self._spark, self._folder, self._options = spark, folder, options
        if not (folder / "files").exists():
            (folder / "files").mkdir()
            self.add(("a", "1.50"), ("b", "2.00"))
            self.add(("b", "3.00"), ("c", "4.00"))

    def add(self, *rows: tuple[str, str]) -> None:
        """Add a micro-batch."""
        number = len(list((self._folder / "files").iterdir()))
        lines = [json.dumps({"_key": code, "code": code, "rate": rate}) for code, rate in rows]
        path = self._folder / "files" / f"{number}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (number, number))  # the order in which Spark takes files

    def rows(self, *columns: str) -> DataFrame:
        reader = self._spark.readStream.schema("_key string, code string, rate string").option("maxFilesPerTrigger", 1)
        return reader.json(str(self._folder / "files")).select(*columns)

    def run(self, frame: DataFrame, mode: str = "append") -> list[tuple[int, int]]:
        """Write what is new; the number and the written rows of each micro-batch."""
        writer = frame.writeStream.format("compactory").options(**self._options).outputMode(mode)
        writer = writer.trigger(availableNow=True).queryName("tariffs")
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        try:
            assert query.awaitTermination(240), "the query has not ended"
        finally:
            query.stop()
        return [(progress.batchId, progress.sink.numOutputRows) for progress in query.recentProgress]

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as a crash before the end of the last micro-batch leaves it."""
        last = max(int(path.name) for path in (self._folder / "checkpoint" / "commits").glob("[0-9]*"))
        for path in (self._folder / "checkpoint" / "commits").glob(f"*{last}*"):
            path.unlink()


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Callable[..., Stream]:
    register(spark)
    return lambda **options: Stream(spark, tmp_path, **options)


def test_micro_batches_are_merged_once(
    stream: Callable[..., Stream],
    sql: psycopg.Connection[Any],  # noqa: F811
    database: str,
) -> None:
    query = stream(url=database, table="tariffs")
    frame = query.rows("code", "rate")
    assert query.run(frame) == [(0, 2), (1, 2)]
    assert tariffs(sql) == [("a", "1.50", None, True), ("b", "3.00", None, True), ("c", "4.00", None, True)]
    sql.execute("UPDATE tariffs SET rate = 9 WHERE code = 'c'")
    query.forget_last_commit()
    query.add(("d", "5.00"))
    assert query.run(frame) == [(1, 2), (2, 1)]
    assert [row[1] for row in tariffs(sql)] == ["1.50", "3.00", "9.00", "5.00"], "batch 1 was merged before"
    assert sql.execute("SELECT split_part(id, '/', 2) FROM compactory.loads").fetchall() == [("2",)]
    assert staged(sql) == []
    query.add(("e", "6.00"), ("e", "7.00"))
    with pytest.raises(Exception, match="the load has keys that are equal for Postgres: code = e"):
        query.run(frame)
    assert staged(sql) == []


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_stream_that_is_killed_merges_nothing_twice(
    stream: Callable[..., Stream],
    sql: psycopg.Connection[Any],  # noqa: F811
    database: str,
    tmp_path: Path,
) -> None:
    query = stream(url=database, table="tariffs")
    for number in range(20):
        query.add((f"k{number:02}", "1.00"))
    command = [sys.executable, "-m", "tests.spark.stream_writer_child", database, str(tmp_path)]
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len(tariffs(sql)) >= 6, 300)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    eventually(lambda: not sql.execute(SESSIONS).fetchall())
    sql.execute("UPDATE tariffs SET note = rate::text, rate = 9")
    query.run(query.rows("code", "rate"))
    merged = tariffs(sql)
    assert len(merged) == 23
    assert {rate for _, rate, note, _ in merged if note is not None} == {"9.00"}, "merged before it was killed"


def test_a_complete_result_replaces_the_table(
    stream: Callable[..., Stream],
    sql: psycopg.Connection[Any],  # noqa: F811
    database: str,
) -> None:
    query = stream(url=database, table="tariffs")
    frame = query.rows("code", "rate").groupBy("code").agg({"rate": "max"}).withColumnRenamed("max(rate)", "rate")
    assert [rows for _, rows in query.run(frame, "complete")] == [2, 3]
    assert [row[:2] for row in tariffs(sql)] == [("a", "1.50"), ("b", "3.00"), ("c", "4.00")]
    sql.execute("INSERT INTO tariffs (code, rate) VALUES ('other', 1)")
    query.add(("a", "8.00"))
    with pytest.raises(Exception, match=r"1 of 4 keys are missing .* option maxDeactivate allows 20%"):
        query.run(frame, "complete")
    assert tariffs(sql)[0][1] == "1.50"


def test_micro_batches_are_sent_at_least_once(
    stream: Callable[..., Stream], kafka: str, unique: Callable[[str], str]
) -> None:
    cluster, topic = Kafka(kafka), unique("stream")
    cluster.create_topic(topic, partitions=2, config={"cleanup.policy": "compact"})
    query = stream(**{"kafka.bootstrap.servers": kafka, "topic": topic})
    assert query.run(query.rows("_key", "rate")) == [(0, 2), (1, 2)]
    newest = {message.key(): message.value() for message in read(cluster, topic)}
    assert newest == {b"a": b'{"rate":"1.50"}', b"b": b'{"rate":"3.00"}', b"c": b'{"rate":"4.00"}'}


def test_only_changed_rows_are_sent(
    spark: SparkSession, stream: Callable[..., Stream], kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The recipe: by `foreachBatch`, also where Spark repeats a micro-batch."""
    cluster, topic = Kafka(kafka), unique("changes")
    cluster.create_topic(topic, partitions=2, config={"cleanup.policy": "compact"})
    into = {"kafka.bootstrap.servers": kafka, "topic": topic}
    reader = spark.read.format("compactory").options(**into).schema("_key string, rate string")

    def send_changes(batch: DataFrame, _number: int) -> None:
        changed = batch.exceptAll(reader.load().select(batch.columns))
        changed.write.format("compactory").mode("append").options(**into).save()

    def run() -> list[tuple[bytes, bytes]]:
        writer = query.rows("_key", "rate").writeStream.foreachBatch(send_changes).trigger(availableNow=True)
        running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert running.awaitTermination(240), "the query has not ended"
        return sorted((message.key(), message.value()) for message in read(cluster, topic))

    query = stream()
    sent = [
        (b"a", b'{"rate":"1.50"}'),
        (b"b", b'{"rate":"2.00"}'),
        (b"b", b'{"rate":"3.00"}'),
        (b"c", b'{"rate":"4.00"}'),
    ]
    assert run() == sent
    query.forget_last_commit()
    query.add(("a", "1.50"), ("b", "5.00"))
    assert run() == sorted([*sent, (b"b", b'{"rate":"5.00"}')])


def test_what_no_stream_can_write_is_told(stream: Callable[..., Stream], database: str) -> None:
    query = stream(url=database, tabel="tariffs", loadId="x")
    with pytest.raises(Exception, match=r"option loadId is for df\.write"):
        query.run(query.rows("code"))
