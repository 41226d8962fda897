"""Rows get the entry that they name: the newest at each micro-batch, or the one of their time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compactory.errors import ConfigError
from compactory_connectors.spark import enrich
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


def test_rows_get_the_newest_entry_and_misses_are_told(spark: SparkSession, topics: Topics) -> None:
    name = topics.create(2)
    topics.produce(name, ("1", '{"v": "old"}'), ("1", '{"v": "new", "w": 2}'), ("2", '{"v": "b"}'), ("2", None))
    rows = spark.createDataFrame([(1, "x"), (2, "y"), (None, "z"), (1, "u")], "id bigint, note string")

    found = enrich(rows, name, "id", kafka=topics.address, observe="seen")

    assert found.columns == ["id", "note", "v", "w", "_found"]
    made = sorted(map(tuple, found.collect()), key=str)
    assert made == [
        (1, "u", "new", 2, True), (1, "x", "new", 2, True), (2, "y", None, None, False), (None, "z", None, None, False),
    ]  # fmt: skip


def test_rows_get_the_entry_of_their_time(spark: SparkSession, topics: Topics) -> None:
    name = topics.create()
    for value, moment in (('{"v": 1}', 1000), ('{"v": 2}', 2000), (None, 3000), ('{"v": 4}', 4000)):
        topics.produce(name, ("k", value), timestamp=moment)
    times = (999, 1000, 1999, 2500, 3000, 3999, 4000, 9000)
    rows = spark.createDataFrame(
        [("k", datetime.fromtimestamp(moment / 1000, UTC)) for moment in times], "key string, at timestamp"
    )

    found = enrich(rows, name, "key", as_of="at", schema="v int", kafka=topics.address).collect()

    assert [row.v for row in sorted(found, key=lambda row: row.at)] == [None, 1, 1, 2, None, None, 4, 4]


def test_each_micro_batch_sees_the_newest_entries(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    name = topics.create()
    topics.produce(name, ("k", '{"v": 1}'))
    source = tmp_path / "rows"
    source.mkdir()
    rows = spark.readStream.schema("key string, n int").json(str(source))
    found = enrich(rows, name, "key", schema="v int", kafka=topics.address, observe="seen")
    query = found.writeStream.format("memory").queryName("enriched").start()
    try:
        (source / "1.json").write_text('{"key": "k", "n": 1}\n{"key": "other", "n": 2}\n')
        query.processAllAvailable()
        topics.produce(name, ("k", '{"v": 2}'), ("other", '{"v": 3}'))
        (source / "2.json").write_text('{"key": "k", "n": 3}\n{"key": "other", "n": 4}\n')
        query.processAllAvailable()
        rows_seen = {row.n: (row.v, row._found) for row in spark.table("enriched").collect()}
        assert rows_seen == {1: (1, True), 2: (None, False), 3: (2, True), 4: (3, True)}
        seen = [progress.observedMetrics["seen"] for progress in query.recentProgress if progress.numInputRows]
        assert [(count.rows, count.misses) for count in seen] == [(2, 1), (2, 0)]
    finally:
        query.stop()


def test_what_is_wrong_is_told_at_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPACTORY_KAFKA", raising=False)
    rows = spark.createDataFrame([("1", "x")], "terminal string, V string")
    with pytest.raises(ConfigError, match="no column 'terminals'; did you mean terminal"):
        enrich(rows, "d", "terminals")
    with pytest.raises(ConfigError, match="column 'terminal' is string; as_of needs a timestamp"):
        enrich(rows, "d", "terminal", as_of="terminal")
    with pytest.raises(ConfigError, match="set COMPACTORY_KAFKA"):
        enrich(rows, "d", "terminal")
    with pytest.raises(ConfigError, match="the rows have columns v, as the entries have"):
        enrich(rows, "d", "terminal", schema="v int", kafka="127.0.0.1:1")
