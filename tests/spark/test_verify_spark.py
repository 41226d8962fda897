"""verify --spark: topic, running stores, tables and exported files hold the same, or the keys that do not are named."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactory import Directory, GlobalStore, Index
from compactory.kafka.client import Kafka
from compactory.read.digest import RANGES, DirectoryDigest, RangeDigest
from compactory_api.http.access import Access, Tokens
from compactory_cli.context.remote import RemoteServer
from compactory_connectors.source.verify.checker import Finding
from compactory_connectors.spark.export.job import ExportOptions, export
from compactory_connectors.spark.verification import store_side
from compactory_connectors.spark.verification.export_side import compare_export
from compactory_connectors.spark.verification.held import digest_held, list_held
from compactory_connectors.spark.verification.running_store import RunningStore
from compactory_connectors.spark.verification.side import SideOutcome
from compactory_connectors.spark.verification.store_side import compare_store
from compactory_connectors.spark.verification.topic_states import TopicStates
from tests.api.serving import Serving
from tests.store.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: dict[str, Directory[Any]] = {
    "plain": Directory("d"),
    "field": Directory("d", key="k", active="on", indexes=[Index("n")]),
    "bytes": Directory("d", decode=bytes),
    "connect": Directory("d", envelope="connect", active="on"),
}


@pytest.fixture
def topics(kafka: str, unique: Callable[[str], str]) -> Topics:
    return Topics(kafka, unique)


@pytest.fixture
def serve(kafka: str) -> Iterator[Callable[..., Serving]]:
    running: list[Serving] = []

    def start(directory: Directory[Any], access: Access | None = None, **options: Any) -> Serving:
        running.append(Serving(GlobalStore(kafka, [directory], **options), access or Access()))
        running[-1].wait_ready()
        return running[-1]

    yield start
    for serving in running:
        serving.stop()


def of(kind: str, topic: str) -> Directory[Any]:
    its = KINDS[kind]
    return Directory(
        "d", topic=topic, key=its.key, active=its.active, indexes=its.indexes, decode=its.decode, envelope=its.envelope
    )


def asked(serving: Serving, token: str | None = None) -> RemoteServer:
    return RemoteServer(f"http://127.0.0.1:{serving.port}", token, timeout=60)


def compare(
    spark: SparkSession, topics: Topics, topic: str, store: RunningStore, wait: float = 20, most: int = 20
) -> SideOutcome:
    with TopicStates(spark, Kafka(topics.address), topic) as states:
        return compare_store(states, store, "d", wait=wait, most=most)


def value(seeded: random.Random, kind: str) -> str | bytes | None:
    if seeded.random() < 0.15:
        return None
    if seeded.random() < 0.05:
        return seeded.choice(["{", '"text"', "", '{"k": {}, "n": {}}', b"\xff{}"])
    doc = {"k": f"K{seeded.randrange(60)}", "on": seeded.random() < 0.8, "n": seeded.choice([1, None, "é\n\"'"])}
    return json.dumps({"schema": None, "payload": doc} if kind == "connect" else doc, ensure_ascii=False)


@pytest.mark.parametrize("kind", KINDS)
def test_spark_comes_to_what_a_store_holds(
    spark: SparkSession, topics: Topics, kafka: str, seeded: random.Random, kind: str
) -> None:
    """Random records, bad ones and foreign keys among them: digests, counts and records agree, whatever the kind."""
    topic = topics.create(2)
    for partition in (0, 1):  # a key lives in one of them, or in both
        keys = [f"T{seeded.randrange(150)}" for _ in range(400)]
        topics.produce(topic, *((key, value(seeded, kind)) for key in keys), partition=partition)
    topics.abort(topic, ("T1", '{"k":"aborted"}'))
    topics.produce(topic, (b"\xff", "{}"), ("", '{"k": "empty"}'))
    directory = of(kind, topic)
    with GlobalStore(kafka, [directory]) as store, TopicStates(spark, Kafka(kafka), topic) as states:
        with store.snapshot("d") as holding:
            expected, held = holding.digest(), {each.key: each for each in holding.records(range(RANGES))}
        frame = states.at(holding.positions)
        digest, bad = digest_held(frame, directory)
        listed = {bytes(row["key"]): row for row in list_held(frame, directory, range(RANGES)).collect()}
        some = {bytes(row["key"]) for row in list_held(frame, directory, [7, 200]).collect()}
    assert digest.ranges == expected.ranges
    assert bad == len(holding.bad)
    assert {key for key, row in listed.items() if row["state"] == "bad"} == holding.bad
    sound = {key: each.digest for key, each in held.items() if key not in holding.bad}
    assert {key: bytes(row["digest"]) for key, row in listed.items() if row["state"] == "held"} == sound
    assert some <= listed.keys()


class Lying:
    """A store that has lost, kept and changed some records."""

    def __init__(self, store: RemoteServer, lies: dict[bytes, bytes | None]) -> None:
        self._store = store
        self._lies = lies
        self.place = store.place

    def digest(self, directory: str) -> Any:
        answer = self._store.digest(directory)
        for each in answer["ranges"]:
            each["digest"] = "0" * 32  # every range has to be looked at
        return answer

    def digest_records(self, directory: str, ranges: Any, *, values: bool = False) -> Iterator[Any]:
        for line in self._store.digest_records(directory, ranges, values=values):
            key = line["key"].encode()
            if key not in self._lies:
                yield line
            elif self._lies[key] is not None:
                yield line | {"digest": "1" * 32} | ({"value": self._lies[key].decode()} if values else {})  # type: ignore[union-attr]
        if 0 in ranges or values:
            yield {"key": "ghost", "digest": "2" * 32, "partition": 0, "offset": 0, "bad": False, "value": "boo"}


def test_keys_that_differ_are_named_with_both_values(
    spark: SparkSession, topics: Topics, serve: Callable[..., Serving]
) -> None:
    """A store that lost, kept or changed a record is found out, key by key."""
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", f'{{"n": {n}}}') for n in range(500)), ("T3", None), ("T4", "{"))
    access = Access(Tokens(read="read-me.0123456789"))
    store = asked(serve(Directory("d", topic=topic), access), "read-me.0123456789")
    fine = compare(spark, topics, topic, store)
    assert (fine.equal, fine.expected, fine.stored, fine.bad, fine.ranges) == (True, 498, 498, 1, 0)
    assert (fine.positions, fine.behind) == ({0: 502}, 0)
    found = compare(spark, topics, topic, Lying(store, {b"T1": None, b"T2": b"else", b"T4": None}))
    assert found.findings == {Finding.MISSING: 1, Finding.DIFFERENT: 1, Finding.EXTRA: 1}
    assert [(each.key, each.finding, each.expected, each.found) for each in found.differences] == [
        (b"T1", Finding.MISSING, b'{"n": 1}', None),
        (b"T2", Finding.DIFFERENT, b'{"n": 2}', b"else"),
        (b"ghost", Finding.EXTRA, None, b"boo"),
    ]
    assert not found.equal
    many = compare(spark, topics, topic, Lying(store, {f"T{n}".encode(): None for n in range(100, 200)}), most=3)
    assert (many.findings[Finding.MISSING], len(many.differences)) == (100, 3)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(store_side, "_MOST", 10)
        monkeypatch.setattr(store_side, "_LISTED", 50)
        few = compare(spark, topics, topic, Lying(store, {f"T{n}".encode(): None for n in range(500)}))
    assert 10 <= few.findings[Finding.MISSING] < 100
    assert not few.equal
    assert any("keys differ or more" in note for note in few.notes)


def test_ranges_are_grouped_by_what_either_side_has() -> None:
    """Of a store that has lost everything all records of the topic would be in the driver at once."""
    full, empty = DirectoryDigest([RangeDigest(200_000)] * RANGES), DirectoryDigest()
    for theirs, ours in ((full, empty), (empty, full)):
        assert max(map(len, store_side._grouped(theirs, ours, range(RANGES)))) == 1


@pytest.mark.proof
def test_what_is_in_flight_is_not_called_different(
    spark: SparkSession, topics: Topics, serve: Callable[..., Serving]
) -> None:
    """Records come all the time, between every two steps; a lie is found among them all the same."""
    topic = topics.create(2)
    topics.produce(topic, *((f"T{n}", "{}") for n in range(300)), *(("steady", "{}"), ("lost", "{}")))
    store = asked(serve(Directory("d", topic=topic)))
    ended = threading.Event()

    def write() -> None:
        for number in count():
            if ended.is_set():
                return
            some = [(f"T{n}", None if n % 7 == number % 7 else f'{{"n": {number}}}') for n in range(0, 300, 3)]
            topics.produce(topic, *some)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        honest = compare(spark, topics, topic, store)
        lying = compare(spark, topics, topic, Lying(store, {b"lost": None}), wait=3)
    finally:
        ended.set()
        writer.join()
    assert (honest.different, honest.open) == (0, 0), honest
    assert lying.findings[Finding.MISSING] == 1
    assert lying.different - lying.findings[Finding.EXTRA] == 1, lying
    assert [each.key for each in lying.differences if each.finding is Finding.MISSING] == [b"lost"]


def test_stores_that_can_not_be_compared(spark: SparkSession, topics: Topics, serve: Callable[..., Serving]) -> None:
    topic, other = topics.create(), topics.create()
    serving = serve(Directory("d", topic=other), Access(Tokens(read="read-me.0123456789")))
    url = f"http://127.0.0.1:{serving.port}"
    assert "is read from topic" in (compare(spark, topics, topic, asked(serving, "read-me.0123456789")).failure or "")
    assert "HTTP 401" in (compare(spark, topics, other, RemoteServer(url, None)).failure or "")
    gone = compare(spark, topics, other, RemoteServer("http://127.0.0.1:9", None))
    assert "was not reached" in (gone.failure or "")
    assert not gone.lasting
    assert not gone.equal


def exported(spark: SparkSession, kafka: str, topic: str, path: Path, **options: Any) -> str:
    directory = of("field", topic)
    export(spark, Kafka(kafka), directory, str(path), ExportOptions(**options))
    return str(path)


def beside(spark: SparkSession, kafka: str, topic: str, path: str, most: int = 20) -> SideOutcome:
    with TopicStates(spark, Kafka(kafka), topic) as states:
        return compare_export(states, Kafka(kafka), path, most=most)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_exported_files_hold_what_the_topic_had(
    spark: SparkSession, topics: Topics, kafka: str, seeded: random.Random, tmp_path: Path, form: str
) -> None:
    """Bad, inactive and deleted records among them; what comes after an export does not make it differ."""
    topic = topics.create(2)
    topics.produce(topic, *((f"T{seeded.randrange(200)}", value(seeded, "field")) for _ in range(600)))
    topics.produce(topic, (b"\xff", "{}"), ("", '{"k": "empty"}'), ("new\nline", '{"k": "a,\\"b\\""}'))
    full = exported(spark, kafka, topic, tmp_path / "full", format=form)
    found = beside(spark, kafka, topic, full)
    assert (found.failure, found.equal, found.ranges, found.behind) == (None, True, 0, 0), found
    assert found.expected == found.stored > 50
    topics.produce(topic, *((f"T{n}", value(seeded, "field")) for n in range(100)), partition=1)
    later = beside(spark, kafka, topic, full)
    assert (later.equal, later.behind) == (True, 100), later
    changes = exported(spark, kafka, topic, tmp_path / "changes", since=full)
    its = beside(spark, kafka, topic, changes)
    assert (its.failure, its.equal) == (None, True), its
    assert its.stored > 0


def test_files_that_were_tampered_with_are_found_out(
    spark: SparkSession, topics: Topics, kafka: str, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", json.dumps({"k": f"K{n}", "on": True})) for n in range(300)))
    path = exported(spark, kafka, topic, tmp_path / "export", format="json")
    [file, *_] = sorted(Path(path).glob("part-*.json"))
    lines = file.read_text().splitlines()
    named = [json.loads(line)["_key"] for line in lines]
    lines[0], lines[1] = lines[0].replace('"K', '"L', 1), lines[1].replace(f'"{named[1]}"', '"T0000"', 1)
    file.write_text("\n".join(lines) + "\n")
    broken = beside(spark, kafka, topic, path)
    assert "are not those of its manifest" in (broken.failure or "")
    assert broken.lasting, "trying again helps nobody"
    manifest = json.loads((Path(path) / "_manifest.json").read_text())
    for each in manifest["files"]:
        each["bytes"] = (Path(path) / each["name"]).stat().st_size
    (Path(path) / "_manifest.json").write_text(json.dumps(manifest))
    assert "Checksum" in (beside(spark, kafka, topic, path).failure or "")
    for checksum in Path(path).glob(".*.crc"):  # Hadoop's local file system has them, others have not
        checksum.unlink()
    found = beside(spark, kafka, topic, path)
    assert found.findings == {Finding.DIFFERENT: 1, Finding.MISSING: 1, Finding.EXTRA: 1}, found
    different = next(each for each in found.differences if each.finding is Finding.DIFFERENT)
    assert different.key.decode() == named[0]
    assert json.loads(different.expected or b"")["k"][0] == "K"
    assert json.loads(different.found or b"")["k"][0] == "L"
    assert "is no export" in (beside(spark, kafka, topic, str(tmp_path)).failure or "")
    other = topics.create()
    assert "is an export of topic" in (beside(spark, kafka, other, path).failure or "")
    history = exported(spark, kafka, topic, tmp_path / "history", history=True)
    assert "is a history" in (beside(spark, kafka, topic, history).failure or "")
