"""What a directory holds at one moment: still while it is read, whatever is applied meanwhile, on every backend."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from compactory import (
    Directory,
    GlobalStore,
    Index,
    NotReady,
    Partition,
    RocksDB,
    StoreClosed,
    StoreState,
    UnknownDirectory,
)
from compactory.kafka.client import Kafka
from compactory.read.digest import RANGES, Digester, DirectoryDigest, range_of
from compactory.read.snapshot import DirectorySnapshot
from compactory.storage.backend import Backend
from compactory.storage.memory_backend import Memory
from compactory_connectors.kafka.topic_reader import TopicReader
from tests.store.ingest.test_rebuild import recreate
from tests.store.tables import Log
from tests.store.topics import Topics, eventually, send


@pytest.fixture(params=["memory", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made: Backend = Memory() if request.param == "memory" else RocksDB(tmp_path / "store")
    yield made
    made.close()


KINDS = [
    Directory("t"),
    Directory("t", key="k"),
    Directory("t", key="k", active="on", indexes=[Index("n")]),
    Directory("t", active="on"),
]


def snapshot_of(log: Log) -> DirectorySnapshot:
    table = log.table
    return DirectorySnapshot(
        directory=table.directory, topic_id=None, positions={}, bad=table.quarantine.bad_topic_keys(),
        revision=table.revision, entries=table.snapshot(),
    )  # fmt: skip


def value(seeded: random.Random, number: int) -> str | None:
    if seeded.random() < 0.2:
        return None
    if seeded.random() < 0.1:
        return "{"
    return json.dumps({"k": f"K{seeded.randrange(30)}", "on": seeded.random() < 0.8, "n": number})


def digest_of(records: dict[bytes, bytes]) -> DirectoryDigest:
    digester = Digester()
    for key, its in records.items():
        digester.add(key, its)
    return digester.result()


@pytest.mark.parametrize("directory", KINDS, ids=lambda each: f"{each.key}-{each.active}")
def test_it_stays_as_it_was_while_records_are_applied(
    backend: Backend, seeded: random.Random, directory: Directory[object]
) -> None:
    """Random histories: each snapshot is what a plain model was when it was taken, read at any pace afterwards."""
    storage = backend.open("t")
    log, model, bad = Log(directory, storage=storage), dict[bytes, bytes](), set[bytes]()

    def step(number: int) -> None:
        key, its = f"T{seeded.randrange(60)}".encode(), value(seeded, number)
        log.put(key, its)
        doc = None if its in (None, "{") else json.loads(its or "")
        if its == "{":
            bad.add(key)
            return
        bad.discard(key)
        if its is None or (directory.active and doc["on"] is False):
            model.pop(key, None)
        else:
            model[key] = its.encode()

    taken: list[tuple[Iterator[object], dict[bytes, bytes]]] = []
    for number in range(400):
        step(number)
        if number % 40 == 0:
            snapshot = snapshot_of(log)
            sound = {key: its for key, its in model.items() if key not in bad}
            steps = count(number + 1)
            digest = snapshot.digest(lambda steps=steps: step(next(steps)))  # a record comes between two slices
            assert digest.ranges == digest_of(sound).ranges
            snapshot.entries.close()
            taken.append((snapshot_of(log).records(range(RANGES)), dict(model)))
    for records, expected in taken:
        assert {each.key: each.value for each in records} == expected  # type: ignore[attr-defined]
    storage.close()


def test_only_the_ranges_that_are_asked_for(backend: Backend) -> None:
    storage = backend.open("t")
    log = Log(Directory("t"), storage=storage)
    places = {f"T{number}".encode(): log.put(f"T{number}", "{}", at=number) for number in range(1000)}
    wanted = {0, 7, 255}
    found = list(snapshot_of(log).records(wanted))
    assert {each.key for each in found} == {key for key in places if range_of(key) in wanted}
    assert all((each.offset, each.value) == (places[each.key], b"{}") for each in found)
    assert all(each.timestamp_ms == each.offset for each in found)
    storage.close()


def test_what_was_let_go_of_costs_the_writer_nothing_more() -> None:
    log = Log(Directory("t"))
    log.put("a", "{}")
    holdings = [snapshot_of(log) for _ in range(3)]
    for snapshot in holdings:
        with snapshot:
            assert len(list(snapshot.records(range(RANGES)))) == 1
    log.put("a", '{"n":1}')
    assert log.table._writer.entries._former_values is None
    revision = log.table.revision
    assert log.table.revision == revision != Log(Directory("t")).table.revision


@pytest.mark.parametrize("on_disk", [False, True])
def test_it_is_of_exactly_its_positions_while_records_come(topics: Topics, tmp_path: Path, on_disk: bool) -> None:
    """Every record before the positions and none behind: the topic read up to there comes to the same digest."""
    topic = topics.create(3)
    ended = threading.Event()

    def write() -> None:
        for number in count():
            if ended.is_set():
                return
            batch = [(f"T{n}", json.dumps({"n": number}) if n % 5 else None) for n in range(number % 7, 300, 7)]
            topics.produce(topic, *batch, partition=number % 3)

    writer = threading.Thread(target=write)
    found: list[tuple[Mapping[int, int], DirectoryDigest]] = []
    with GlobalStore(topics.address, [topic], backend=RocksDB(tmp_path / "store") if on_disk else None) as store:
        writer.start()
        try:
            eventually(lambda: all(store.positions().values()))
            while len(found) < 15:
                with store.snapshot(topic) as snapshot:
                    found.append((snapshot.positions, snapshot.digest()))
        finally:
            ended.set()
            writer.join()
    with TopicReader(Kafka(topics.address), topic) as reader:
        messages = [each for part in reader.read_to(reader.ends()) for each in part]
    assert len({digest.total for _, digest in found}) > 5, "nothing was written meanwhile"
    for positions, digest in found:
        assert digest.ranges == digest_of(read_to(positions, messages)).ranges


def read_to(positions: Mapping[int, int], messages: list[Any]) -> dict[bytes, bytes]:
    """What lives at these positions; of a key in several partitions the one with the newer timestamp."""
    newest: dict[bytes, dict[int, Any]] = {}
    for each in messages:
        if each.offset() < positions[each.partition()]:
            newest.setdefault(each.key(), {})[each.partition()] = each
    current = (max(its.values(), key=lambda each: (each.timestamp()[1], each.partition())) for its in newest.values())
    return {each.key(): each.value() for each in current if each.value() is not None}


def test_what_can_not_be_told(topics: Topics, unique: Callable[[str], str]) -> None:
    """Not before it is ready, not of a directory that is not there, not from a store that is closed."""
    topic = topics.create()
    topics.produce(topic, *((f"T{n}", "{}") for n in range(2000)))
    store = GlobalStore(topics.address, [topic])
    with pytest.raises(NotReady):
        store.snapshot(topic)
    with store:
        with pytest.raises(UnknownDirectory):
            store.snapshot(unique("other"))
        snapshot = store.snapshot(topic)
        assert snapshot.positions == {0: store.positions()[Partition(topic, 0)]}
        records = snapshot.records(range(RANGES))
        next(records)
    with pytest.raises(StoreClosed):
        list(records)
    with pytest.raises(StoreClosed):
        store.snapshot(topic)


def test_what_is_of_no_known_position(topics: Topics) -> None:
    """Guarantee 2: while a topic is read anew nothing is told of the former one that could be taken for this."""
    name = topics.create()
    topics.produce(name, ("old", "{}"))
    with GlobalStore(topics.address, [name]) as store:
        with topics.transaction() as producer:
            recreate(topics, name)
            send(producer, name, [("new", "{}")])
            eventually(lambda: store.state is StoreState.STALE, 30)
            assert list(store[name]) == ["old"]
            with pytest.raises(NotReady, match="no known positions"):
                store.snapshot(name)
            producer.commit_transaction(10)
        eventually(lambda: store.state is StoreState.READY, 30)
        with store.snapshot(name) as snapshot:
            assert [record.key for record in snapshot.records(range(RANGES))] == [b"new"]
            assert snapshot.topic_id == store.topic_id(name)
