"""Guarantees 2 and 3: a store on disk that is stopped and started again, whatever became of its topics meanwhile."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pydantic
import pytest
from confluent_kafka import Consumer, TopicPartition

from compactory import BadRecord, CompactoryError, Directory, GlobalStore, Index, Partition, RocksDB, StoreState
from compactory.ingest import topic_config as policy_module
from compactory.ingest.rebuild_rules import TopicLog, dated, needed_rebuild
from compactory.records import RebuildCause, Topic
from compactory.storage.backend import Backend
from compactory.storage.checkpoint import CaughtUp, Checkpoint
from compactory.storage.memory_backend import Memory
from tests.stack.apache_kafka import ApacheKafka
from tests.store.ingest.test_rebuild import recreate, values
from tests.store.pausing import resume
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]
OpenBackend = Callable[[Path], Backend]


@pytest.fixture(params=[RocksDB, Memory])
def open_backend(request: pytest.FixtureRequest) -> OpenBackend:
    """Return the class of each backend that outlives a store."""
    backend: OpenBackend = request.param
    return backend


@pytest.fixture
def other_kafka(own_kafka_server: ApacheKafka) -> ApacheKafka:
    """A second cluster, whose disk a test may change."""
    resume(own_kafka_server)
    return own_kafka_server


@pytest.mark.parametrize("records", [2, 5, 9], ids=["fewer", "as many", "more"])
def test_a_topic_created_again_while_stopped(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path, records: int
) -> None:
    """Guarantees 2 and 3: no key of the former topic survives a start from disk, also where offsets would fit."""
    name, unchanged = topics.create(), topics.create()
    topics.produce(name, *((f"old{number}", "{}") for number in range(5)))
    topics.produce(unchanged, ("a", "{}"))
    open_store(name, unchanged, backend=open_backend(tmp_path)).close()
    recreate(topics, name)
    topics.produce(name, *((f"new{number}", '{"n":1}') for number in range(records)))
    store = open_store(name, unchanged, backend=open_backend(tmp_path))
    assert values(store, name) == {f"new{number}": {"n": 1} for number in range(records)}
    assert set(store[unchanged]) == {"a"}
    assert store.rebuilds() == {(name, "recreated"): 1}


def test_what_is_written_last_of_a_former_topic_says_so(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 2: a store that is closed between the look that finds another topic and the rebuild."""
    name, hangs, may_go_on = topics.create(), threading.Event(), threading.Event()

    def decode(value: bytes) -> bytes:
        if value == b"hang" and threading.current_thread().name == "compactory-reader":
            hangs.set()
            may_go_on.wait(60)
        return value

    topics.produce(name, ("old", "1"))
    store = open_store(Directory(name, decode=decode), backend=RocksDB(tmp_path))
    topics.produce(name, ("x", "hang"))
    assert hangs.wait(30)
    recreate(topics, name)
    topics.produce(name, *((f"new{number}", "1") for number in range(5)))
    eventually(store._progress.demanded, 30)
    closing = threading.Thread(target=store.close)
    closing.start()
    eventually(store._reader._stopping.is_set)
    may_go_on.set()
    closing.join(30)
    store = open_store(Directory(name, decode=bytes), backend=RocksDB(tmp_path))
    assert set(store[name]) == {f"new{number}" for number in range(5)}


def test_the_log_begins_above_the_checkpoint(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path
) -> None:
    """Guarantee 2: what was deleted between the position and the log's start was never seen."""
    name = topics.create(cleanup_policy="delete")
    topics.produce(name, ("a", "1"), ("b", "1"))
    directory = Directory(name, decode=bytes)
    open_store(directory, backend=open_backend(tmp_path)).close()
    topics.produce(name, ("a", "2"), ("b", None), ("c", "1"))
    topics.cut(name, 4)
    store = open_store(directory, backend=open_backend(tmp_path))
    assert values(store, name) == {"c": b"1"}
    assert store.rebuilds() == {(name, "lost"): 1}


def test_the_log_begins_at_the_checkpoint(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path
) -> None:
    """Guarantee 3: retention took all records and the mark of a transaction behind them; nothing was missed."""
    name = topics.create(cleanup_policy="compact,delete")
    topics.commit(name, ("a", "1"), ("b", "1"))
    directory = Directory(name, decode=bytes)
    open_store(directory, backend=open_backend(tmp_path)).close()
    topics.cut(name, 3)
    topics.commit(name, ("c", "2"))
    store = open_store(directory, backend=open_backend(tmp_path))
    assert values(store, name) == {"a": b"1", "b": b"1", "c": b"2"}
    assert store.rebuilds() == {}


def still_in_log(topics: Topics, name: str, key: bytes) -> bool:
    """Return True if the log still has a record of a key."""
    consumer = Consumer({"bootstrap.servers": topics.address, "group.id": "look", "enable.partition.eof": True})
    consumer.assign([TopicPartition(name, 0, 0)])
    has_key = False
    try:
        while (message := consumer.poll(20)) is not None and not message.error():
            has_key = has_key or message.key() == key
    finally:
        consumer.close()
    return has_key


def test_a_tombstone_that_was_compacted_away_while_stopped(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 2: a checkpoint older than delete.retention.ms is not gone on with: that would leave a ghost."""
    name = topics.create(
        segment_ms="50", min_cleanable_dirty_ratio="0.001", delete_retention_ms="50", max_compaction_lag_ms="50"
    )
    monkeypatch.setattr(policy_module, "_LEAST_RETENTION", 0.05)
    topics.produce(name, ("gone", "1"), ("stays", "1"))
    directory = Directory(name, decode=bytes)
    open_store(directory, backend=open_backend(tmp_path / "a")).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    topics.produce(name, ("gone", None))

    def is_cleaned() -> bool:
        topics.produce(name, ("roll", str(time.time())))
        return not still_in_log(topics, name, b"gone")

    eventually(is_cleaned, 90)
    store = open_store(directory, backend=open_backend(tmp_path / "a"))
    assert set(store[name]) == {"stays", "roll"}
    assert store.rebuilds() == {(name, "tombstones"): 1}
    monkeypatch.setattr(policy_module, "_LEAST_RETENTION", 86_400.0)  # as if the check were not there
    ghostly = open_store(directory, backend=open_backend(tmp_path / "b"))
    assert set(ghostly[name]) == {"stays", "roll", "gone"}


def test_a_checkpoint_says_of_each_partition_since_when(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 2: also right after a rebuild: without marks nobody could tell that tombstones may be gone."""
    name = topics.create(2)
    topics.produce(name, ("old", "{}"))
    store = open_store(name, backend=RocksDB(tmp_path / "a"))
    recreate(topics, name)
    began = time.time()
    topics.produce(name, ("new", "{}"))
    eventually(lambda: store.rebuilds() and store.state is StoreState.READY, 30)
    eventually(lambda: len(list((tmp_path / "a").glob("*/0*"))) == 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("LOCK"))  # as a crash leaves it
    backend = RocksDB(tmp_path / "b")
    storage = backend.open(name)
    assert storage.checkpoint is not None
    assert storage.checkpoint.complete
    assert storage.checkpoint.topic_id == store.topic_id(name)
    assert storage.checkpoint.caught_up.keys() == storage.checkpoint.positions.keys() == {0}
    assert all(began - 60 < mark.at <= time.time() for mark in storage.checkpoint.caught_up.values())
    storage.close()
    backend.close()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, None),
        ({"definition": "d2"}, RebuildCause.REDEFINED),
        ({"complete": False}, RebuildCause.INCOMPLETE),
        ({"topic_id": "t2"}, RebuildCause.RECREATED),
        ({"topic_id": None}, RebuildCause.RECREATED),
        ({"positions": {0: 5, 1: 5}}, RebuildCause.RECREATED),
        ({"positions": {0: 1}}, RebuildCause.LOST),
        ({"positions": {0: 2}}, None),
        ({"positions": {0: 11}}, RebuildCause.TRUNCATED),
        ({"positions": {0: 10}}, None),
        ({"caught_up": {}}, RebuildCause.INCOMPLETE),
        ({"caught_up": {0: CaughtUp(at=899.0, end=9)}}, RebuildCause.TOMBSTONES),
        ({"caught_up": {0: CaughtUp(at=901.0, end=9)}}, None),
        ({"caught_up": {0: CaughtUp(at=0.0, end=10)}}, None),
    ],
)
def test_what_can_be_gone_on_with(changes: dict[str, Any], cause: RebuildCause | None) -> None:
    """Guarantee 2: every reason, at its edges. The log is 2 … 10, tombstones are kept for 100 s, it is second 1000."""
    fields: dict[str, Any] = {
        "topic_id": "t",
        "cluster_id": "c",
        "definition": "d",
        "complete": True,
        "positions": {0: 5},
    }
    checkpoint = Checkpoint(**(fields | {"caught_up": {0: CaughtUp(at=990.0, end=5)}} | changes))
    place = Partition("name", 0)
    topic = Topic(name="name", topic_id="t", partitions=(0,))
    rebuild = needed_rebuild(checkpoint, "d", TopicLog(topic, "c", {place: 2}, {place: 10}, 100.0, 1000.0))
    assert (rebuild and rebuild.cause) == cause


@pytest.mark.proof
def test_another_cluster_under_the_same_path(
    topics: Topics, other_kafka: ApacheKafka, unique: Callable[[str], str], open_store: Opener, tmp_path: Path
) -> None:
    """Guarantee 2: a topic of the same name with more records; and a log that was cut off while the store was away."""
    name = topics.create()
    topics.produce(name, ("here", "1"))
    directory = Directory(name, decode=bytes)
    open_store(directory, backend=RocksDB(tmp_path)).close()
    second = Topics(other_kafka.address, unique)
    second.create(name=name)
    second.produce(name, *((f"there{number}", "1") for number in range(3)))
    with GlobalStore(other_kafka.address, [directory], backend=RocksDB(tmp_path)) as store:
        assert set(store[name]) == {"there0", "there1", "there2"}
        assert store.rebuilds() == {(name, "recreated"): 1}
    other_kafka.stop()
    backup = other_kafka.home / "backup"
    shutil.copytree(other_kafka.home / "data", backup)
    other_kafka.start()
    Topics(other_kafka.address, unique).produce(name, ("lost", "1"), ("there0", None))
    with GlobalStore(other_kafka.address, [directory], backend=RocksDB(tmp_path)) as store:
        assert set(store[name]) == {"there1", "there2", "lost"}
        assert not store.rebuilds()
    other_kafka.stop()
    shutil.rmtree(other_kafka.home / "data")
    shutil.move(backup, other_kafka.home / "data")
    other_kafka.start()
    with GlobalStore(other_kafka.address, [directory], backend=RocksDB(tmp_path)) as store:
        assert set(store[name]) == {"there0", "there1", "there2"}
        assert store.rebuilds() == {(name, "truncated"): 1}


@pytest.mark.parametrize(
    "change",
    [{"key": "k"}, {"active": "on"}, {"indexes": [Index("k", unique=True)]}, {"decode": bytes}],
    ids=["key", "active", "index", "decode"],
)
def test_directories_defined_otherwise(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Guarantee 2: the entries are those of the new definition; back again, those of the old one."""
    name = topics.create()
    topics.produce(name, ("a", '{"k":"x","on":true}'), ("b", '{"k":"y","on":false}'))
    plain, changed = Directory(name), Directory(name, **change)
    fresh = {directory: values(open_store(directory), name) for directory in (plain, changed)}
    for directory, rebuilds in ((plain, 0), (changed, 1), (plain, 1)):
        store = open_store(directory, backend=open_backend(tmp_path))
        assert values(store, name) == fresh[directory]
        assert sum(store.rebuilds().values()) == rebuilds
        store.close()


def model(**fields: type) -> Any:
    chosen: dict[str, Any] = {name: (kind, ...) for name, kind in fields.items()}
    return pydantic.create_model("Terminal", **chosen)


@pytest.mark.parametrize("make", [lambda **fields: make_dataclass("Terminal", fields.items()), model])
def test_a_class_that_changed_checks_values_again(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path, make: Callable[..., Any]
) -> None:
    """Guarantee 4: else lookups would refuse what the quarantine does not have."""
    name = topics.create()
    topics.produce(name, ("a", '{"k":"x","n":1}'), ("b", '{"k":"y"}'))
    for fields, bad in (({"k": str}, []), ({"k": str}, []), ({"k": str, "n": int}, [b"b"])):
        store = open_store(Directory(name, decode=make(**fields)), backend=open_backend(tmp_path))
        assert [record.key for record in store.quarantine()] == bad
        assert sum(store.rebuilds().values()) == len(bad)
        store.close()


def test_a_partition_added_while_stopped(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path
) -> None:
    """Guarantees 1 and 3: it is read whole, the others from where they were."""
    name = topics.create(1, cleanup_policy="delete")
    topics.produce(name, ("a", "{}"), ("b", "{}"))
    open_store(name, backend=open_backend(tmp_path)).close()
    topics.cut(name, 2)  # so that nobody could read the first partition anew
    topics.grow(name, 3)
    topics.produce(name, ("c", "{}"), partition=2)
    store = open_store(name, backend=open_backend(tmp_path))
    assert set(store[name]) == {"a", "b", "c"}
    assert not store.rebuilds()


def test_bad_records_survive_a_restart(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path
) -> None:
    """Guarantees 3 and 4: "can't tell" stays so, until a program that can read them comes along."""
    name = topics.create()
    topics.produce(name, ("good", '{"n":1}'), ("good", "["), ("bad", "["))

    def strict(value: bytes) -> int:
        return len(value) if value != b"[" else 1 // 0

    for _ in range(3):
        store = open_store(Directory(name, decode=strict), backend=open_backend(tmp_path))
        assert store[name]["good"] == 7
        with pytest.raises(BadRecord):
            store[name].get("bad")
        assert sorted(error.offset for error in store.quarantine()) == [1, 2]
        store.close()
    store = open_store(Directory(name, decode=len), backend=open_backend(tmp_path))
    assert values(store, name) == {"good": 1, "bad": 1}
    assert not store.quarantine()
    assert not store.rebuilds()


def test_keys_in_two_partitions_after_growth(
    topics: Topics, open_store: Opener, open_backend: OpenBackend, tmp_path: Path, seeded: random.Random
) -> None:
    """Guarantees 1 and 3: the newer timestamp wins, tombstones included, on both backends and after restarts."""
    name = topics.create(2)
    directory = Directory("d", topic=name, decode=bytes)
    last: dict[str, dict[int, tuple[int, str | None]]] = {}  # key -> partition -> its newest record there
    clocks = [int(time.time() * 1000) - seeded.randrange(100_000) // 5 * 5 for _ in range(5)]

    def write(partitions: int, rows: int) -> None:
        """Each partition has a clock of its own, so that none of them is read last by chance."""
        for _ in range(rows):
            key = f"k{seeded.randrange(60)}"
            number = zlib.crc32(key.encode()) % partitions
            clocks[number] += seeded.randrange(200) * 5 + 5
            at = clocks[number] // 5 * 5 + number  # no two partitions at the same moment
            value = None if seeded.random() < 0.3 else str(at)
            last.setdefault(key, {})[number] = (at, value)
            topics.produce(name, (key, value), partition=number, timestamp=at)

    def expected() -> dict[str, bytes]:
        newest = {key: max(rows.values(), key=lambda row: row[0])[1] for key, rows in last.items()}
        return {key: value.encode() for key, value in newest.items() if value is not None}

    write(2, 120)
    open_store(directory, backend=open_backend(tmp_path)).close()
    topics.grow(name, 5)
    for _ in range(3):
        write(5, 40)
        write(2, 20)  # a writer that did not hear of it
        store = open_store(directory, backend=open_backend(tmp_path))
        write(5, 20)
        store.barrier(30)
        assert values(store, "d") == expected() == values(open_store(directory), "d")
        twice = {key.encode() for key, rows in last.items() if len(rows) > 1}
        assert {contested.key for contested in store.contested()} <= twice
        assert store.contested()
        store.close()


def test_a_catch_up_that_takes_too_long_after_a_stop(
    topics: Topics, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 2: neither the stop nor the catching up exceeds delete.retention.ms, both together do."""
    monkeypatch.setattr(policy_module, "_LEAST_RETENTION", 0.1)
    name = topics.create(delete_retention_ms="4000")
    topics.produce(name, ("a", "{}"))
    with GlobalStore(kafka, [name], backend=RocksDB(tmp_path)) as store:
        stopped = time.monotonic()
    topics.produce(name, ("b", "{}"))
    for _ in range(2):  # a start that ends before it is caught up forgets nothing
        with topics.transaction() as producer:
            send(producer, name, [("c", "{}")])
            store = GlobalStore(kafka, [name], backend=RocksDB(tmp_path))
            starting = threading.Thread(target=suppressed, args=[store])
            starting.start()
            eventually(lambda store=store: store.positions() or store.rebuilds())
            eventually(lambda: time.monotonic() - stopped > 4.5)
            if not store.rebuilds() and _ == 0:
                store.close()
            producer.commit_transaction(10)
        starting.join(60)
        if store.ready:
            break
    assert set(store[name]) == {"a", "b", "c"}
    assert store.rebuilds() == {(name, "tombstones"): 1}
    store.close()
    with GlobalStore(kafka, [name], backend=RocksDB(tmp_path)) as store:
        assert not store.rebuilds()


def suppressed(store: GlobalStore) -> None:
    with contextlib.suppress(CompactoryError):
        store.start()


def test_a_clock_that_was_ahead_when_the_store_closed() -> None:
    """Guarantee 2: a mark is dated by the clock that nobody sets; one in the future tells nothing."""
    wall = 2e9
    future_mark = CaughtUp(at=wall + 8_000, end=5, clock=100.0, boot="this")
    for mark, boot, at in (
        (future_mark, "this", wall - 500),
        (future_mark, "another", 0.0),
        (future_mark, None, 0.0),
        (CaughtUp(at=wall - 10, end=5), "this", wall - 10),
        (CaughtUp(at=wall + 5, end=5), "this", wall),
    ):
        checkpoint = Checkpoint(
            topic_id="t", cluster_id="c", definition="d", positions={0: 5}, caught_up={0: mark}, complete=True
        )
        checkpoint = dated(checkpoint, wall=wall, clock=600.0, boot=boot)
        assert checkpoint.caught_up[0].at == at
        place = Partition("d", 0)
        topic = Topic(name="d", topic_id="t", partitions=(0,))
        rebuild = needed_rebuild(checkpoint, "d", TopicLog(topic, "c", {place: 0}, {place: 6}, 60.0, wall))
        assert (rebuild is None) == (at > wall - 60)
        if not at:
            assert rebuild is not None
            assert "the machine's clock was ahead" in rebuild.detail
