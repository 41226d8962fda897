"""Exports on a real Kafka: what lookups find is what the files have, and nothing that was cut off is an export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactory import Directory
from compactory.digest import DirectoryDigest, RangeDigest, range_of, record_digest
from compactory.kafka import Kafka
from compactory_connectors.spark.export import ExportOptions, export
from compactory_connectors.spark.manifest import Counts, Manifest
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TERMINALS = Directory("terminals", active="isActive")


class Silent:
    def begin(self, stage: str, rows: int | None) -> None: ...

    def end(self) -> None: ...


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


@pytest.fixture
def exported(spark: SparkSession, topics: Topics, tmp_path: Path) -> Callable[..., tuple[Manifest, dict[str, Any]]]:
    """Exports a topic to a folder of the test; returns the manifest and the rows of Parquet by key."""

    def run(topic: str, path: str = "full", active: str | None = "isActive", **options: Any) -> Any:
        folder = str(tmp_path / path)
        if "since" in options:
            options["since"] = str(tmp_path / options["since"])
        directory = Directory(topic, active=active, envelope=options.pop("envelope", "none"))
        manifest = export(spark, Kafka(topics.address), directory, folder, ExportOptions(**options), Silent())
        return manifest, by_key(spark.read.parquet(folder)) if manifest.format == "parquet" else {}

    return run


def by_key(frame: DataFrame) -> dict[str, Any]:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    found = {row["_key"]: row for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def digest(records: dict[bytes, bytes]) -> DirectoryDigest:
    found = DirectoryDigest()
    for key, value in records.items():
        found.add(range_of(key), RangeDigest.of([record_digest(key, value)]))
    return found


def test_the_newest_values_as_typed_columns(topics: Topics, exported: Callable[..., Any]) -> None:
    name = topics.create(3)
    topics.produce(name, ("T1", '{"id": 1, "isActive": true, "name": "old"}'), partition=0)
    topics.produce(name, ("T1", '{"id": 1, "isActive": true, "name": "жук 🪲\\n"}'), partition=0)
    topics.produce(name, ("T2", '{"id": 2, "isActive": false}'), ("gone", "{}"), ("gone", None), partition=1)
    topics.produce(name, ("T3", '{"id": 3.5, "tags": ["a", null], "at": {"lat": 1, "lon": null}}'), partition=1)
    topics.abort(name, ("T1", '{"id": "aborted"}'), ("T4", '{"id": "aborted"}'), partition=0)

    manifest, rows = exported(name)

    assert {key: fields(row) for key, row in rows.items()} == {
        "T1": {"id": 1.0, "isActive": True, "name": "жук 🪲\n", "tags": None, "at": None},
        "T3": {"id": 3.5, "isActive": None, "name": None, "tags": ["a", None], "at": {"lat": 1, "lon": None}},
    }
    assert manifest.counts == Counts(rows=2, tombstones=1, inactive=1)
    assert manifest.columns["at"] == "struct<`lat`:bigint,`lon`:string>"
    assert manifest.ends == {0: 5, 1: 4, 2: 0}
    assert manifest.digest == digest({row["_key"].encode(): bytes(row["_value"]) for row in rows.values()})
    assert rows["T1"]["_partition"] == 0
    assert rows["T1"]["_offset"] == 1


def test_a_key_in_two_partitions_is_exported_once_as_lookups_find_it(
    topics: Topics, exported: Callable[..., Any]
) -> None:
    name = topics.create(2)
    topics.produce(name, ("a", '{"v": 1}'), ("gone", '{"v": 1}'), partition=0, timestamp=2000)
    topics.produce(name, ("a", '{"v": 2}'), partition=1, timestamp=1000)
    topics.produce(name, ("gone", None), partition=1, timestamp=3000)

    manifest, rows = exported(name)

    assert {key: row["v"] for key, row in rows.items()} == {"a": 1}
    assert manifest.counts == Counts(rows=1, tombstones=1)
