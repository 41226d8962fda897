"""Guarantee 7: a store on disk starts without Kafka where all it needs is there, and says so (STALE)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactory import Directory, GlobalStore, NotReady, Partition, RocksDB, StaleData, StoreState, Unreachable
from compactory.errors import StoreClosed, StoreFailed
from tests.stack.apache_kafka import ApacheKafka
from tests.store.ingest.test_rebuild import recreate, values
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]


def test_kafka_is_away_and_comes_back(own_kafka: ApacheKafka, unique: Callable[[str], str], tmp_path: Path) -> None:
    """Guarantees 3 and 7: ready at once from disk, as old as it is; then caught up, and nothing read twice."""
    topics = Topics(own_kafka.address, unique)
    name = topics.create(cleanup_policy="delete")
    topics.produce(name, ("a", '{"n":1}'), ("b", '{"n":1}'))
    directory = Directory(name, max_age=600.0, on_stale="raise")
    with GlobalStore(own_kafka.address, [directory], backend=RocksDB(tmp_path)) as store:
        store.barrier(30)
        closed_at = time.monotonic() - max(store.ages().values())
    topics.cut(name, 2)  # so that a store that reads anew has nothing
    topics.produce(name, ("a", '{"n":2}'), ("b", None))
    own_kafka.stop()
    for round_ in range(2):  # also where it is closed again before Kafka was there
        store = GlobalStore(own_kafka.address, [directory], backend=RocksDB(tmp_path), start_stale=True)
        began = time.monotonic()
        store.start()
        assert time.monotonic() - began < 15, "half of stall_timeout: nobody waits for Kafka"
        assert store.state is StoreState.STALE
        assert store.ready
        assert store.live
        assert values(store, name) == {"a": {"n": 1}, "b": {"n": 1}}
        age = store.ages()[Partition(name, 0)]
        assert time.monotonic() - closed_at - 1 <= age < time.monotonic() - closed_at + 60
        assert store[name]["a"] == {"n": 1}, "younger than max_age"
        with pytest.raises(StaleData):
            store[name].within(0.001).get("a")
        assert name in store.stale()
        if round_ == 0:
            store.close()
    own_kafka.start()
    eventually(lambda: store.state is StoreState.READY, 60)
    assert values(store, name) == {"a": {"n": 2}}
    assert store.stale() == {}
    assert not store.rebuilds()
    (token,) = Topics(own_kafka.address, unique).produce(name, ("c", '{"n":3}'))
    store.wait_for(token, timeout=30)
    assert max(store.ages().values()) < 30
    store.close()


def test_nothing_or_something_else_is_kept_while_kafka_is_away(topics: Topics, kafka: str, tmp_path: Path) -> None:
    """Guarantees 1 and 7: never ready from nothing, from what is incomplete, or read under another definition."""
    complete, empty, partial = topics.create(), topics.create(), topics.create()
    topics.produce(complete, ("a", "{}"))
    with GlobalStore(kafka, [complete], backend=RocksDB(tmp_path)):
        pass
    with topics.transaction() as producer:
        send(producer, partial, [("a", "{}")])
        store = GlobalStore(kafka, [partial], backend=RocksDB(tmp_path), stall_timeout=1)
        with pytest.raises(Exception, match="open transaction"):
            store.start()
        store.close()
        producer.abort_transaction(10)
    kinds: list[list[Any]] = [[empty], [partial], [complete, empty], [Directory(complete, key="id")]]
    for directories in kinds:
        store = GlobalStore("127.0.0.1:1", directories, backend=RocksDB(tmp_path), start_stale=True, stall_timeout=1)
        was_ready: list[bool] = []
        store.subscribe(lambda store=store, was_ready=was_ready: was_ready.append(store.ready))  # type: ignore[misc]
        with pytest.raises(Unreachable):
            store.start()
        assert not any(was_ready)
        with pytest.raises((NotReady, StoreFailed)):
            len(store[store.directories[0].name])
        store.close()
        with pytest.raises(StoreClosed):
            store.barrier()
    with GlobalStore("127.0.0.1:1", [complete], backend=RocksDB(tmp_path), start_stale=True, stall_timeout=1) as store:
        assert set(store[complete]) == {"a"}, "what was complete is so still"


def test_kafka_is_there(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 7: start returns at once with what is kept, and is READY when all is read that is there."""
    name = topics.create()
    directory = Directory(name, max_age=600.0, on_stale="raise")
    topics.produce(name, ("a", '{"n":1}'))
    open_store(directory, backend=RocksDB(tmp_path)).close()
    with topics.transaction() as producer:
        send(producer, name, [("a", '{"n":2}')])
        store = open_store(directory, backend=RocksDB(tmp_path), start_stale=True)
        assert store.state is StoreState.STALE
        assert store[name]["a"] == {"n": 1}
        with pytest.raises(StaleData):
            store[name].within(0.0001)["a"]
        eventually(lambda: store.loading().total == 1)
        assert store.loading().read == 0
        assert store.state is StoreState.STALE
        producer.commit_transaction(10)
    eventually(lambda: store.state is StoreState.READY, 30)
    assert store[name]["a"] == {"n": 2}
    assert not store.rebuilds()


def test_the_topic_was_created_again(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantees 2 and 7: the former topic's data is served as stale until the other is read."""
    name = topics.create()
    topics.produce(name, *((f"old{number}", "{}") for number in range(5)))
    store = open_store(name, backend=RocksDB(tmp_path))
    former = store.topic_id(name)
    store.close()
    recreate(topics, name)
    with topics.transaction() as producer:
        send(producer, name, [("new", "{}")])
        store = open_store(name, backend=RocksDB(tmp_path), start_stale=True)
        eventually(lambda: store.rebuilds() == {(name, "recreated"): 1}, 30)
        eventually(lambda: store.loading().total, 30)
        assert store.state is StoreState.STALE
        assert set(store[name]) == {f"old{number}" for number in range(5)}
        assert store[name].get("old1") == {}
        assert store.topic_id(name) == former
        assert "id" in store.stale()[name]
        assert Partition(name, 0) not in store.positions()
        under_way = iter(store[name].items())
        next(under_way)
        producer.commit_transaction(10)
    eventually(lambda: store.state is StoreState.READY, 30)
    assert set(store[name]) == {"new"}
    assert store.topic_id(name) != former
    assert len(list(under_way)) == 4, "it began before the swap"
    del under_way
    eventually(lambda: len(list(tmp_path.glob("*/0*"))) == 1, 30)
    store.close()
    store = open_store(name, backend=RocksDB(tmp_path))
    assert set(store[name]) == {"new"}
    assert not store.rebuilds()


def test_commands_are_kept_while_kafka_is_away(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantees 4 and 7: what an operator skips from disk alone stays skipped, and positions stay known."""
    name = topics.create()
    topics.produce(name, ("a", "["))
    open_store(name, backend=RocksDB(tmp_path)).close()
    store = GlobalStore("127.0.0.1:1", [name], backend=RocksDB(tmp_path), start_stale=True, stall_timeout=1)
    with store:
        assert store.skip(*store.quarantine(), timeout=30) == []
    store = open_store(name, backend=RocksDB(tmp_path))
    assert not store.quarantine()
    assert store[name].get("a") is None
    assert not store.rebuilds()


def test_the_topic_is_missing_for_a_while(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantees 2 and 7: what is kept is served without its topic too; it is not fresh because the topic is back."""
    name = topics.create()
    topics.produce(name, ("a", '{"n":1}'))
    open_store(name, backend=RocksDB(tmp_path)).close()
    with topics.transaction() as producer:
        send(producer, name, [("a", '{"n":2}')])
        store = GlobalStore(topics.address, [name], backend=RocksDB(tmp_path), start_stale=True)
        describe = store._engine.kafka.topics
        store._engine.kafka.topics = lambda *_: {}  # type: ignore[method-assign]  # as a cluster that forgot it
        with store:
            eventually(lambda: "does not exist" in store.stale()[name], 30)
            assert store[name]["a"] == {"n": 1}
            store._engine.kafka.topics = describe  # type: ignore[method-assign]
            eventually(lambda: store.loading().total == 1, 30)
            assert store.state is StoreState.STALE
            assert "not caught up" in store.stale()[name]
            producer.commit_transaction(10)
            eventually(lambda: store.state is StoreState.READY, 30)
            assert store[name]["a"] == {"n": 2}
            assert not store.rebuilds()
    topics.delete(name)
    eventually(lambda: name not in topics.admin.list_topics(timeout=5).topics)
    store = open_store(name, backend=RocksDB(tmp_path), start_stale=True)
    eventually(lambda: "does not exist" in store.stale()[name], 30)
    assert store[name]["a"] == {"n": 2}
    topics.create(name=name)
    eventually(lambda: store.state is StoreState.READY, 30)
    assert len(store[name]) == 0
