"""A store on RocksDB with a real Kafka: restarts, damage while it serves, starts without Kafka."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from compactory import Directory, GlobalStore, Index, RocksDB, StoreState
from compactory.errors import BackendCorrupt, BackendLocked
from tests.store.model import Model, Row
from tests.store.table.test_history import SHAPES, compare, random_value, timestamps
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]


def test_a_restart_reads_only_what_is_new(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 3: what was read is not even in the log any more."""
    name = topics.create(cleanup_policy="compact,delete")
    topics.produce(name, *((f"k{number}", f'{{"n":{number % 3}}}') for number in range(500)))
    directory = Directory(name, indexes=[Index("n")])
    store = open_store(directory, backend=RocksDB(tmp_path))
    assert len(store[name]) == 500
    store.close()
    topics.cut(name, 500)
    topics.produce(name, ("k7", None), ("k8", '{"n":9}'), ("new", '{"n":9}'))
    store = open_store(directory, backend=RocksDB(tmp_path))
    assert len(store[name]) == 500
    assert "k7" not in store[name]
    assert [entry.key for entry in store[name].find_entries(n=9)] == ["k8", "new"]
    assert len(store[name].find(n=0)) == 167
    assert [key for key, _ in store[name].range("k99", "n")] == ["k99"]
    assert not store.rebuilds()
    (token,) = topics.produce(name, ("k8", None))
    store.wait_for(token)
    assert store[name].get("k8") is None


def test_random_histories_over_restarts(
    topics: Topics, open_store: Opener, tmp_path: Path, seeded: random.Random
) -> None:
    """Guarantees 1, 3, 4 and 5: all shapes of one topic in one topic storage, followed, closed and opened again."""
    name = topics.create(3)
    directories = [Directory(shape, topic=name, **options) for shape, options in SHAPES.items()]
    models = [Model(directory) for directory in directories]
    for _ in range(4):
        store = open_store(*directories, backend=RocksDB(tmp_path))
        for _ in range(6):
            partition = seeded.randrange(3)
            rows = [(f"{partition}-{seeded.choice('123456789')}", random_value(seeded)) for _ in range(9)]
            produce: Callable[..., Any] = seeded.choice([topics.produce, topics.commit, topics.abort])
            for token, (key, value) in zip(produce(name, *rows, partition=partition) or [], rows, strict=False):
                models[0].rows.append(Row(key.encode(), value, partition, token.offset, 0))
        if seeded.random() < 0.7:
            store.barrier()
            stamped = timestamps(store, models[0])
            for model in models:
                model.rows = list(stamped)
                compare(store[model.directory.name], model)
        store.close()
    assert not store.rebuilds()


def test_damage_that_is_met_while_serving(
    topics: Topics, open_store: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guarantees 2 and 3: whoever reads the damaged place is told; the topic is read anew beside the rest."""
    name = topics.create()
    rows = [(f"k{number:05d}", orjson.dumps({"n": number, "pad": "x" * 100})) for number in range(3000)]
    topics.produce(name, *rows)
    open_store(name, backend=RocksDB(tmp_path)).close()
    store = open_store(name, backend=RocksDB(tmp_path, block_cache_bytes=0))
    for table in tmp_path.glob("*/*/*.sst"):
        data = bytearray(table.read_bytes())
        data[len(data) // 3 : len(data) // 3 + 200] = bytes(200)
        with table.open("r+b") as file:  # in place: the store has it open
            file.write(data)
    met = 0
    for key, _ in rows:
        try:
            store[name].raw(key)
        except BackendCorrupt:
            met += 1
    assert 0 < met < 3000
    eventually(lambda: store.rebuilds().get((name, "corrupt")) and store.state is StoreState.READY, 30)
    assert {key: store[name].raw(key) for key in store[name]} == dict(rows)
    assert store.ready
    eventually(lambda: list(tmp_path.glob("*/damaged-*")))
    store.close()
    assert len(open_store(name, backend=RocksDB(tmp_path))[name]) == 3000


def test_directories_defined_otherwise_are_read_anew(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 2: an index that is new has to be filled."""
    name = topics.create()
    topics.produce(name, ("a", '{"n":1}'), ("b", '{"n":1}'))
    open_store(name, backend=RocksDB(tmp_path)).close()
    store = open_store(Directory(name, indexes=[Index("n")]), backend=RocksDB(tmp_path))
    assert len(store[name].find(n=1)) == 2
    eventually(lambda: [path.name for path in tmp_path.glob("*/0*")] == ["000002"])


def test_a_start_from_disk_while_kafka_is_away(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 7: what was complete is served as stale."""
    name = topics.create()
    topics.produce(name, ("a", '{"n":1}'))
    open_store(name, backend=RocksDB(tmp_path)).close()
    unreachable = GlobalStore("127.0.0.1:1", [name], backend=RocksDB(tmp_path), start_stale=True, stall_timeout=1)
    with unreachable:
        assert unreachable.state is StoreState.STALE
        assert unreachable[name]["a"] == {"n": 1}


def test_two_stores_on_one_folder(topics: Topics, kafka: str, open_store: Opener, tmp_path: Path) -> None:
    name = topics.create()
    store = open_store(name, backend=RocksDB(tmp_path))
    second = GlobalStore(kafka, [name], backend=RocksDB(tmp_path))
    with pytest.raises(BackendLocked, match="stop that, or give each store a folder of its own"):
        second.start()
    second.close()
    assert store.ready
    store.close()
    open_store(name, backend=RocksDB(tmp_path))
