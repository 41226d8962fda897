"""Exports on a real Kafka: what lookups find is what the files have, and nothing that was cut off is an export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from compactory import Directory
from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory.read.digest import DirectoryDigest, RangeDigest, range_of, record_digest
from compactory_connectors.spark.export.folder import ExportFolder
from compactory_connectors.spark.export.job import ExportOptions, export
from compactory_connectors.spark.export.manifest import MANIFEST, Counts, Manifest, read_manifest
from compactory_connectors.spark.topic import reading as topic_reading
from compactory_connectors.spark.topic.extent import TopicChanged, capture
from compactory_connectors.spark.topic.reading import Reading, read_span
from tests.spark.conftest import needs_spark
from tests.store.topics import Topics, eventually, send

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


def test_a_topic_without_records_makes_files_with_columns(spark: SparkSession, topics: Topics, exported: Any) -> None:
    name = topics.create(2)
    topics.abort(name, ("a", "{}"))

    manifest, rows = exported(name)

    assert rows == {}
    assert manifest.counts == Counts(rows=0)
    assert len(manifest.files) == 1


def test_records_that_can_not_be_read_are_rows_without_fields(topics: Topics, exported: Any) -> None:
    name = topics.create(cleanup_policy="delete")
    good = ("good", '{"id": 1}')
    topics.produce(
        name, ("text", "no JSON"), ("list", "[1]"), ("nan", '{"id": NaN}'), ("two", '{"id":1} {"id":2}'), good
    )
    topics.produce(name, ("latin", b'{"id": "\xe9"}'), (b"\xff", '{"id": 1}'), (None, '{"id": 1}'), ("empty", ""), good)

    manifest, rows = exported(name)

    bad = {"text", "list", "nan", "two", "latin", "empty"}
    assert {key for key, row in rows.items() if row["_error"]} == bad
    assert rows.keys() == bad | {"good"}
    assert {key: row["id"] for key, row in rows.items()} == dict.fromkeys(bad) | {"good": 1}
    assert bytes(rows["latin"]["_value"]) == b'{"id": "\xe9"}'
    assert manifest.counts == Counts(rows=7, bad=6, nameless=1)
    assert len(manifest.bad_records) == 7
    assert manifest.bad_records[0].offset == 0


def test_columns_hold_values_that_no_sample_had(topics: Topics, exported: Any) -> None:
    """The sample is of the end of the largest partition: here everything else is elsewhere."""
    name = topics.create(2)
    topics.produce(name, ("odd", '{"id": "x", "more": {"a": 1}, "ID": 7, "_key": 1, "n": 5}'), partition=0)
    topics.produce(name, *((f"k{n}", f'{{"id": {n}, "n": null}}') for n in range(2500)), partition=1)

    manifest, rows = exported(name)

    assert len(rows) == 2501
    assert fields(rows["odd"]) == {"id": "x", "n": 5, "more": {"a": 1}}
    assert rows["k7"]["id"] == "7"
    assert manifest.columns == {"id": "string", "n": "bigint", "more": "struct<`a`:bigint>"}
    assert set(manifest.left_out) == {"ID", "_key"}


def test_columns_as_they_were_asked_for(topics: Topics, exported: Any) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"id": 1, "price": 12.10, "at": "2024-02-29T12:00:00Z", "more": 1}'))
    topics.produce(name, ("b", '{"id": "x", "at": "never"}'), ("c", '{"at": "never"}'))
    topics.produce(name, ("d", '{"price": 0.125}'), ("e", '{"at": 1709208000000}'))

    manifest, rows = exported(name, columns="id bigint, price decimal(10,2), at timestamp")

    assert str(rows["a"]["price"]) == "12.10"
    assert rows["a"]["at"].isoformat() == "2024-02-29T12:00:00"
    assert rows["b"]["_error"] == "field 'id' is not of type bigint"
    assert rows["c"]["_error"] == "field 'at' is not of type timestamp"
    assert rows["d"]["_error"].startswith("field 'price' is not of type decimal(10,2), or not for sure")
    assert rows["e"]["at"] == rows["a"]["at"]
    assert manifest.counts == Counts(rows=5, bad=3)
    assert len(manifest.bad_records) == 3
    assert manifest.columns == {"id": "bigint", "price": "decimal(10,2)", "at": "timestamp"}


@pytest.mark.parametrize("columns", [None, "of struct<`acquirer-id`: bigint>"])
def test_names_within_a_column_that_need_quotes_are_read_back(
    columns: str | None, spark: SparkSession, topics: Topics, exported: Any, tmp_path: Path
) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"of": {"acquirer-id": 7}}'))

    manifest, rows = exported(name, columns=columns)

    assert fields(rows["a"]) == {"of": {"acquirer-id": 7}}
    assert by_key(ExportFolder(spark, tmp_path / "full").read(manifest)) == rows


@pytest.mark.parametrize("form", ["csv", "json", "orc"])
def test_what_other_formats_have_is_read_back(
    form: str, spark: SparkSession, topics: Topics, exported: Any, tmp_path: Path
) -> None:
    name = topics.create()
    odd = 'a "quoted",\r\nline\\ 🪲 ;'
    values = {"1": {"t": odd, "n": {"x": [1, 2]}}, "2": {"t": "", "n": None}, "3": {"t": None}, "4": {"t": " x "}}
    topics.produce(name, *((key, json.dumps(value, ensure_ascii=False)) for key, value in values.items()))

    manifest, _ = exported(name, path=form, format=form)

    rows = by_key(ExportFolder(spark, tmp_path / form).read(manifest))
    texts = {key: row["t"] for key, row in rows.items()}
    assert texts == {"1": odd, "2": "", "3": None, "4": " x "}
    nested = rows["1"]["n"]
    assert (json.loads(nested) if form == "csv" else nested) == {"x": [1, 2]}
    raw = {key: row["_value"] for key, row in rows.items()}
    assert {key: json.loads(value if isinstance(value, str) else bytes(value)) for key, value in raw.items()} == values


def test_increments_add_up_to_what_a_full_export_has(spark: SparkSession, topics: Topics, exported: Any) -> None:
    """Tombstones, what ``active`` says, bad records, a new partition; and increments of increments."""
    name = topics.create(2)
    topics.produce(name, *((f"k{n}", f'{{"id": {n}, "isActive": true}}') for n in range(20)), partition=0)
    exported(name)
    topics.produce(
        name, ("k1", '{"id": 100, "isActive": true}'), ("k2", None), ("k3", '{"isActive": false}'), partition=0
    )
    topics.produce(name, ("new", '{"id": 1, "isActive": true}'), ("k4", None), partition=0)
    topics.produce(name, ("k4", '{"id": 4.5}'), ("k5", "bad"), ("never", None), partition=0)
    first, one = exported(name, path="one", since="full")
    topics.abort(name, ("k6", None), partition=0)
    topics.grow(name, 3)
    topics.produce(name, ("k3", '{"id": 3, "isActive": true}'), ("new", None), partition=0)
    topics.produce(name, ("later", '{"id": 9}'), partition=2)
    second, two = exported(name, path="two", since="one")
    nothing, none = exported(name, path="three", since="two")
    _, before = exported(name, path="again", columns="id double, isActive boolean")

    full = {f"k{n}": (n, True) for n in range(20)}
    for rows in (one, two, none):
        for key, row in rows.items():
            if row["_op"] == "delete":
                assert row["_value"] is None
                full.pop(key, None)
            else:
                full[key] = (row["id"], row["isActive"])
    assert full == {key: (row["id"], row["isActive"]) for key, row in before.items()}
    assert {key: row["_op"] for key, row in one.items()} == {
        "k1": "put", "k2": "delete", "k3": "delete", "new": "put", "k4": "put", "k5": "put", "never": "delete",
    }  # fmt: skip
    assert first.counts == Counts(rows=7, deletes=3, bad=1, tombstones=2, inactive=1)
    assert first.starts == {0: 20, 1: 0}
    assert {key: row["_op"] for key, row in two.items()} == {"k3": "put", "new": "delete", "later": "put"}
    assert second.columns == first.columns == {"id": "double", "isActive": "boolean"}
    assert nothing.counts.rows == 0


def test_an_increment_is_refused_where_records_may_be_gone(topics: Topics, exported: Any, tmp_path: Path) -> None:
    name = topics.create(cleanup_policy="compact,delete", delete_retention_ms="86400000")
    topics.produce(name, ("a", "{}"), ("b", "{}"))
    exported(name)
    with pytest.raises(ConfigError, match="the directory's active was 'isActive' and is None; export in full again"):
        exported(name, path="other", since="full", active=None)
    topics.produce(name, ("c", "{}"), ("d", "{}"))
    topics.cut(name, 3)
    with pytest.raises(ConfigError, match="records of partition 0 between offsets 2 and 3 were deleted; export in"):
        exported(name, path="cut", since="full")
    exported(name, path="old")
    age(tmp_path / "old" / MANIFEST, hours=25)
    with pytest.raises(ConfigError, match=r"it is 25.0 hours old, and tombstones are kept for 24.0 hours"):
        exported(name, path="late", since="old")
    topics.delete(name)
    topics.forget_producer()
    topics.create(name=name)
    topics.produce(name, *(("a", "{}"),) * 5)
    with pytest.raises(ConfigError, match="was deleted and created again since; export in full again"):
        exported(name, path="again", since="full")
    with pytest.raises(ConfigError, match="is no export: it has no _manifest"):
        exported(name, path="none", since="nowhere")
    assert not (tmp_path / "again").exists()


def age(manifest: Path, hours: float) -> None:
    content = json.loads(manifest.read_text())
    content["captured_ms"] -= hours * 3_600_000
    manifest.write_text(json.dumps(content))
    manifest.with_name(f".{manifest.name}.crc").unlink()


def test_the_history_has_every_version_and_its_time(
    spark: SparkSession, topics: Topics, exported: Any, tmp_path: Path
) -> None:
    name = topics.create(2)
    for stamp, key, value in [
        (1000, "a", '{"v": 1}'), (2000, "a", '{"v": 2}'), (1500, "a", '{"v": 3}'), (3000, "a", None),
        (4000, "a", '{"v": 4}'), (5000, "off", '{"v": 1}'), (6000, "off", '{"v": 2, "isActive": false}'),
    ]:  # fmt: skip
        topics.produce(name, (key, value), timestamp=stamp)
    topics.produce(name, ("a", '{"v": 5}'), partition=1, timestamp=4500)

    with pytest.raises(AssertionError, match="twice"):
        exported(name, path="history", history=True)

    rows = spark.read.parquet(str(tmp_path / "history")).orderBy("_key", "_valid_from", "v").collect()
    assert [(row["_key"], row.v, seconds(row["_valid_from"]), seconds(row["_valid_to"])) for row in rows] == [
        ("a", 1, 1.0, 2.0), ("a", 2, 2.0, 2.0), ("a", 3, 2.0, 3.0), ("a", 4, 4.0, 4.5), ("a", 5, 4.5, None),
        ("off", 1, 5.0, 6.0),
    ]  # fmt: skip


def seconds(moment: Any) -> float | None:
    return None if moment is None else (moment.minute * 60 + moment.second) + moment.microsecond / 1e6


def test_what_compaction_has_left_is_exported(topics: Topics, exported: Any) -> None:
    name = topics.create(segment_ms="50", min_cleanable_dirty_ratio="0.001", segment_bytes="1048576")
    began = int(time.time() * 1000) - 60_000
    for version in range(5):  # each closes the segment before it, by its time
        values = ((f"k{n}", f'{{"v": {version}}}') for n in range(50))
        topics.produce(name, *values, timestamp=began + version * 1000)
    reader = Kafka(topics.address)
    eventually(lambda: holes(reader, name), timeout=60)

    manifest, rows = exported(name)

    assert {row["v"] for row in rows.values()} == {4}
    assert manifest.counts == Counts(rows=50)


def holes(kafka: Kafka, topic: str) -> bool:
    extent = capture(kafka, topic)
    reading = Reading(properties=kafka.properties(), topic=topic, spans=extent.whole)
    read = [int(batch.num_rows) for batch in read_span(reading, extent.whole[0])]
    return bool(sum(read) < extent.offsets)


def test_an_open_transaction_is_waited_for_or_named(topics: Topics, exported: Any, tmp_path: Path) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"v": 1}'))
    with topics.transaction("hanging") as producer:
        send(producer, name, [("a", '{"v": 2}')])
        with pytest.raises(Unreachable, match=r"partition 0 from offset 1, .*describe-producers"):
            exported(name, path="early", wait=0.3)
        assert not (tmp_path / "early").exists()
        producer.commit_transaction(10)
    assert exported(name)[1]["a"]["v"] == 2


def test_a_topic_that_is_created_again_meanwhile_makes_no_export(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    name = topics.create()
    topics.produce(name, ("a", "{}"))

    class Recreating(Silent):
        def end(self) -> None:
            topics.delete(name)
            topics.forget_producer()
            topics.create(name=name)

    path = str(tmp_path / "full")
    with pytest.raises(TopicChanged, match="deleted and created again while it was read"):
        export(spark, Kafka(topics.address), Directory(name), path, ExportOptions(), Recreating())
    with pytest.raises(ConfigError, match="is no export"):
        ExportFolder(spark, path).manifest()


def test_a_folder_is_never_taken_from_anybody(
    spark: SparkSession, topics: Topics, exported: Any, tmp_path: Path
) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"v": 1}'))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is neither empty nor an export of ours"):
        exported(name, path="mine", overwrite=True)
    with pytest.raises(ConfigError, match=r"thesis\.txt is a file: name a folder"):
        exported(name, path="mine/thesis.txt", overwrite=True)
    with pytest.raises(ConfigError, match="the path of an export is empty"):
        ExportFolder(spark, "")
    exported(name)
    (mine / "thesis.txt").rename(tmp_path / "full" / "thesis.txt")
    with pytest.raises(ConfigError, match=r"nor an export of ours alone \(it has thesis\.txt\)"):
        exported(name, overwrite=True)
    (tmp_path / "full" / "thesis.txt").unlink()
    with pytest.raises(ConfigError, match="--since and --to are both"):
        exported(name, path="full/", since="full", overwrite=True)
    with pytest.raises(ConfigError, match="is an export already: give --overwrite"):
        exported(name)
    (tmp_path / "full" / MANIFEST).rename(tmp_path / "full" / "_begun.json")  # as one that was killed leaves it
    (tmp_path / "full" / "part-of-then.parquet").write_text("half a file")
    topics.produce(name, ("a", '{"v": 2}'))
    assert exported(name)[1]["a"]["v"] == 2
    assert exported(name, overwrite=True)[1]["a"]["v"] == 2


def test_of_two_exports_into_one_folder_the_earlier_is_none(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """A run that was taken for dead, and goes on beside the one that was started in its place."""
    name = topics.create()
    topics.produce(name, ("a", '{"v": 1}'))
    path = str(tmp_path / "full")

    class Overtaken(Silent):
        def end(self) -> None:
            ExportFolder(spark, path).begin(overwrite=False)

    with pytest.raises(CompactoryError, match="another export writes into it as well"):
        export(spark, Kafka(topics.address), Directory(name), path, ExportOptions(), Overtaken())
    with pytest.raises(ConfigError, match="is no export"):
        ExportFolder(spark, path).manifest()


def test_tombstones_that_may_be_forgotten_while_they_are_read(
    spark: SparkSession, topics: Topics, exported: Any, tmp_path: Path
) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"v": 1}'))
    exported(name, active=None)

    class Long(Silent):
        def end(self) -> None:
            later = SimpleNamespace(time=lambda: time.time() + 90_000)
            monkeypatch.setattr("compactory_connectors.spark.export.increments.time", later)

    options, one = ExportOptions(since=str(tmp_path / "full")), str(tmp_path / "one")
    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(ConfigError, match=r"it is 25\.0 hours old"):
        export(spark, Kafka(topics.address), Directory(name), one, options, Long())
    with pytest.raises(ConfigError, match="is no export"):
        ExportFolder(spark, one).manifest()


def test_whoever_takes_long_over_records_is_not_taken_for_kafka(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a slow file system may hold a task up for minutes between two batches."""
    name = topics.create()
    topics.produce(name, *((f"k{n}", "{}") for n in range(7000)))
    kafka = Kafka(topics.address)
    extent = capture(kafka, name)
    late = 0.0
    monkeypatch.setattr(topic_reading, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late))
    found = 0
    for batch in read_span(Reading(properties=kafka.properties(), topic=name, spans=()), extent.whole[0]):
        found += batch.num_rows
        late += 100.0
    assert found == 7000


def test_values_of_a_schema_registry_are_refused(topics: Topics, exported: Any) -> None:
    name = topics.create()
    topics.produce(name, ("a", b"\0\0\0\0\1\2"))
    with pytest.raises(ConfigError, match="in the wire format of a schema registry"):
        exported(name)


def test_fields_whose_names_are_data_or_the_records_own(topics: Topics, exported: Any, tmp_path: Path) -> None:
    name = topics.create()
    topics.produce(name, *((f"k{n}", json.dumps({"by": {f"a{n}": 1, f"b{n}": 2}})) for n in range(1001)))
    with pytest.raises(ConfigError, match=r"the values have 2,002 different fields; name those"):
        exported(name)
    with pytest.raises(ConfigError, match=r"--columns: _key, ID: names that begin with _"):
        exported(name, columns="id bigint, _key int, ID string")
    with pytest.raises(ConfigError, match="--columns is empty"):
        exported(name, columns="")
    assert not (tmp_path / "full").exists()


def test_envelopes_are_opened(topics: Topics, exported: Any) -> None:
    name = topics.create()
    wrapped = '{"schema": {}, "payload": {"id": 1, "isActive": %s}}'
    topics.produce(name, ("a", wrapped % "true"), ("b", wrapped % "false"), ("c", '{"schema": {}, "payload": null}'))
    manifest, rows = exported(name, envelope="connect")
    assert {key: fields(row) for key, row in rows.items()} == {"a": {"id": 1, "isActive": True}}
    assert manifest.counts == Counts(rows=1, inactive=2)


@pytest.mark.proof
def test_an_export_that_was_killed_is_none_and_can_be_run_again(topics: Topics, tmp_path: Path) -> None:
    """The command itself, in processes of its own."""
    needs_spark()
    name = topics.create(2)
    topics.produce(name, *((f"k{n}", f'{{"id": {n}}}') for n in range(1000)))
    folder = tmp_path / "lake"
    where = ["--to", str(folder), "--kafka", topics.address, "--master", "local[2]"]
    command = [sys.executable, "-m", "compactory_cli", "spark", "export", name, *where, "--json"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    eventually((folder / "_begun.json").exists, timeout=120)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(20)
    assert not (folder / MANIFEST).exists()

    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["counts"]["rows"] == 1000
    manifest = read_manifest((folder / MANIFEST).read_bytes(), "here")
    assert {each.name for each in manifest.files} == {each.name for each in folder.glob("*.parquet")}
    assert not (folder / "_begun.json").exists()

    topics.produce(bad := topics.create(), ("a", "no JSON"))
    command[5:8] = [bad, "--to", str(tmp_path / "bad")]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert failed.returncode == 1
    assert "none of the 1 records can be read" in failed.stderr
