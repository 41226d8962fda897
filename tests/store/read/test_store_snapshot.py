"""Guarantees 2 and 5: all directories at one set of positions, on every backend, whatever is applied meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from compactory import ConfigError, Directory, GlobalStore, Index, NotReady, RocksDB, StoreClosed, StoreSnapshot
from compactory.read.store_snapshot import frozen_view
from compactory.storage.memory_backend import Memory
from tests.store.ingest.test_rebuild import recreate
from tests.store.model import Model, Row
from tests.store.table.test_history import SHAPES, compare, random_value
from tests.store.tables import Log, read_to
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("shape", SHAPES)
def test_random_histories_seen_from_earlier(backend: str, shape: str, seeded: random.Random, tmp_path: Path) -> None:
    """Every way to read a snapshot agrees with the model of its moment, also beside older and newer snapshots."""
    for number in range(20):
        made: Any = Memory() if backend == "memory" else RocksDB(tmp_path / f"{number}")
        directory = Directory("d", **SHAPES[shape])
        log, model = Log(directory, storage=made.open("t")), Model(directory)
        log.storage.commit(read_to(0))  # a database has readers from then on
        kept: list[tuple[Any, Model]] = []
        for _ in range(seeded.randrange(10, 60)):
            if seeded.random() < 0.3:
                then = Model(directory)
                then.rows.extend(model.rows)
                kept.append((frozen_view(log.view, log.view._served), then))
            if seeded.random() < 0.3:
                kept[:1] = []
            key, value, at = seeded.choice("1234").encode(), random_value(seeded), seeded.randrange(20)
            model.rows.append(Row(key, value, 0, log.put(key, value, at=at), at))
            if kept:
                compare(*seeded.choice(kept))
        for each in kept:
            compare(*each)
            assert list(each[0].prefix("")) == sorted(each[0].items())
        compare(log.view, model)
        kept.clear()
        log.storage.close()
        made.close()


def test_directories_of_two_topics_belong_together(topics: Topics, open_store: Opener) -> None:
    """What a transaction wrote to both is in both or in none, as its positions say; taken by several threads."""
    one, two = topics.create(), topics.create()
    store = open_store(Directory(one, indexes=[Index("n")]), two)
    wrong: list[Any] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            snapshot = store.snapshot()
            for topic in (one, two):
                positions = [end for place, end in snapshot.positions.items() if place.topic == topic]
                last = max((snapshot[topic].entry(key).offset for key in snapshot[topic]), default=-1)
                values = {value["n"] for value in snapshot[topic].values()}
                if positions != [last + 1] or len(values) > 1 or len(snapshot[topic]) != len(list(snapshot[topic])):
                    wrong.append((topic, positions, last, values))

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(30):
        value = orjson.dumps({"n": number})
        topics.produce(one, ("a", value))
        topics.produce(two, ("a", value))
    store.barrier(30)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    snapshot = store.snapshot()
    topics.produce(one, ("a", '{"n":-1}'), ("b", '{"n":29}'))
    store.barrier()
    assert [value["n"] for value in snapshot[one].find(n=29)] == [29]
    assert list(snapshot[one].index("n")) == [29]
    assert [value["n"] for value in store.snapshot()[one].find(n=29)] == [29]
    assert snapshot[store[one].directory].raw("a") == b'{"n":29}'
    assert snapshot.topic_ids[one] == store.topic_id(one)


def test_a_snapshot_outlives_a_rebuild_and_no_store(topics: Topics, open_store: Opener, kafka: str) -> None:
    name = topics.create()
    topics.produce(name, ("a", '{"n":1}'))
    fresh = GlobalStore(kafka, [name])
    with pytest.raises(NotReady):
        fresh.snapshot()
    store = open_store(name)
    snapshot = store.snapshot()
    assert isinstance(snapshot, StoreSnapshot)
    with pytest.raises(ConfigError, match="does not change"):
        snapshot[name].watch()
    recreate(topics, name)
    topics.produce(name, ("b", '{"n":2}'))
    eventually(lambda: set(store[name]) == {"b"}, 30)
    assert dict(snapshot[name].items()) == {"a": {"n": 1}}
    assert snapshot.topic_ids[name] != store.topic_id(name)
    snapshot = store.snapshot()
    store.close()
    with pytest.raises(StoreClosed):
        snapshot[name]["b"]
    with pytest.raises(StoreClosed):
        store.snapshot()
