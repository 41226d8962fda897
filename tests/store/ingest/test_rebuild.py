"""Guarantee 2: never silently wrong. What was read is given up where it can't be trusted, and served until then."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactory import Directory, GlobalStore, Partition, RocksDB, StartTimeout, StoreState, Token, WaitTimeout
from compactory.ingest import reader as reader_module
from compactory.ingest import topic_config as policy_module
from compactory.ingest.topic_progress import Phase
from tests.stack.apache_kafka import ApacheKafka
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]


def recreate(topics: Topics, name: str, **config: Any) -> None:
    """Delete a topic and create it again as soon as the cluster allows."""
    topics.delete(name)
    eventually(lambda: name not in topics.admin.list_topics(timeout=5).topics)
    topics.create(name=name, **config)
    topics.forget_producer()


def values(store: GlobalStore, name: str) -> dict[str, Any]:
    return dict(store[name].items())


def rebuilt(store: GlobalStore, name: str, cause: str) -> bool:
    return store.state is StoreState.READY and store.rebuilds().get((name, cause), 0) > 0


@pytest.mark.parametrize("records", [2, 5, 9], ids=["fewer", "as many", "more"])
def test_a_topic_created_again_is_read_anew(topics: Topics, open_store: Opener, records: int) -> None:
    """Guarantee 2: with fewer, as many and more records than were read; no key of the former topic survives."""
    name, unchanged = topics.create(), topics.create()
    topics.produce(name, *((f"old{number}", "{}") for number in range(5)))
    store = open_store(name, unchanged)
    recreate(topics, name)
    topics.produce(name, *((f"new{number}", '{"n":1}') for number in range(records)))
    eventually(lambda: sum(store.rebuilds().values()) > 0 and store.state is StoreState.READY, 30)
    assert values(store, name) == {f"new{number}": {"n": 1} for number in range(records)}
    assert store.positions()[Partition(name, 0)] == records
    (token,) = topics.produce(name, ("later", "{}"))
    store.wait_for(token)
    assert "later" in store[name]
    (token,) = topics.produce(unchanged, ("a", "{}"))
    store.wait_for(token)
    assert "a" in store[unchanged]


def test_the_old_data_is_served_while_the_topic_is_read_anew(topics: Topics, open_store: Opener) -> None:
    """Guarantees 2 and 6: stale and ready meanwhile; positions of the former topic satisfy nobody."""
    name, unchanged = topics.create(), topics.create()
    topics.produce(name, *((f"old{number}", "{}") for number in range(5)))
    store = open_store(name, unchanged)
    old_id = store.topic_id(name)
    with topics.transaction() as producer:
        with store._discovery._refreshing:  # so that the new topic is not read before there is something in it
            recreate(topics, name)
            (inside,) = send(producer, name, [("new", "{}")])
            topics.produce(name, *((f"behind{number}", "{}") for number in range(2)))
        eventually(lambda: store.rebuilds() and store.state is StoreState.STALE, 30)
        eventually(lambda: store.topics()[name].topic_id != old_id)
        assert store.topic_id(name) == old_id, "what is served is of the former topic"
        assert store.ready
        assert set(store[name]) == {f"old{number}" for number in range(5)}
        assert name in store.stale()
        assert unchanged not in store.stale()
        assert Partition(name, 0) not in store.positions()
        with pytest.raises(WaitTimeout):
            store.wait_for(Token(name, 0, 0), timeout=0.3)
        with pytest.raises(WaitTimeout):
            store.barrier(0.5)
        (elsewhere,) = topics.produce(unchanged, ("a", "{}"))
        store.wait_for(elsewhere)  # the other topic goes on meanwhile
        producer.commit_transaction(10)
    store.wait_for(inside, timeout=20)
    assert set(store[name]) == {"new", "behind0", "behind1"}
    eventually(lambda: store.state is StoreState.READY)
    assert store.stale() == {}
    assert store.topic_id(name) != old_id
    store.barrier()


def test_a_topic_created_again_while_it_is_loaded(topics: Topics, kafka: str) -> None:
    """Guarantees 1 and 2: ready means complete for the topic that is there now."""
    name = topics.create()
    with topics.transaction() as producer:
        send(producer, name, [("old", "{}")])
        store = GlobalStore(kafka, [name])
        starting = threading.Thread(target=store.start, daemon=True)
        starting.start()
        eventually(store.positions)
        producer.abort_transaction(10)  # a topic with an open transaction can't be deleted in peace
        recreate(topics, name)
        topics.produce(name, ("new", "{}"))
    starting.join(30)
    eventually(lambda: store.ready and set(store[name]) == {"new"}, 30)
    store.close()


def test_a_deleted_topic_is_served_until_it_is_there_again(topics: Topics, open_store: Opener) -> None:
    """Guarantees 2 and 7: stale, not down."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    store = open_store(name)
    topics.delete(name)
    eventually(lambda: store.state is StoreState.STALE, 30)
    assert "does not exist" in store.stale()[name]
    assert store.ready
    assert "a" in store[name]
    topics.create(name=name)
    topics.forget_producer()
    topics.produce(name, ("b", "{}"))
    eventually(lambda: rebuilt(store, name, "recreated"), 30)
    assert set(store[name]) == {"b"}


def test_a_position_that_is_not_in_the_log_any_more(topics: Topics, kafka: str) -> None:
    """Guarantee 2: an offset out of range is never reset silently, it begins anew."""
    name = topics.create(cleanup_policy="delete")
    topics.produce(name, *((f"k{number}", "{}") for number in range(10)))
    store = GlobalStore(kafka, [name])
    starts = store._engine.kafka.log_starts
    calls: list[int] = []

    def too_early(*args: Any) -> dict[Partition, int]:
        calls.append(1)
        return starts(*args) | ({Partition(name, 0): 0} if len(calls) == 1 else {})

    store._engine.kafka.log_starts = too_early  # type: ignore[method-assign]
    topics.cut(name, 5)
    store.start()
    assert set(store[name]) == {f"k{number}" for number in range(5, 10)}
    assert store.rebuilds() == {(name, "lost"): 1}
    store.close()


def test_a_log_that_runs_away_for_good_times_out(topics: Topics, kafka: str) -> None:
    """Guarantee 1: reading anew over and over is no progress."""
    name = topics.create(cleanup_policy="delete")
    topics.produce(name, *((f"k{number}", "{}") for number in range(10)))
    store = GlobalStore(kafka, [name], stall_timeout=3)
    starts = store._engine.kafka.log_starts
    store._engine.kafka.log_starts = lambda *args: starts(*args) | {Partition(name, 0): 0}  # type: ignore[method-assign]
    topics.cut(name, 5)
    with pytest.raises(StartTimeout):
        store.start()
    store.close()


def test_a_live_reader_that_was_away_for_too_long(
    topics: Topics, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 2: a reader that hangs past delete.retention.ms may have missed tombstones, and reads anew."""
    monkeypatch.setattr(policy_module, "_LEAST_RETENTION", 0.5)
    name = topics.create(delete_retention_ms="3000")
    may_go_on = threading.Event()
    may_go_on.set()

    def decode(value: bytes) -> bytes:
        if value == b"hang" and threading.current_thread().name == "compactory-reader":
            may_go_on.wait(60)
        return value

    topics.produce(name, ("gone", "1"), ("stays", "1"))
    store = open_store(Directory(name, decode=decode))
    may_go_on.clear()
    topics.produce(name, ("x", "hang"))
    topics.produce(name, ("gone", None))
    eventually(lambda: name in store._progress.demanded(), 30)
    may_go_on.set()
    eventually(lambda: rebuilt(store, name, "tombstones"), 30)
    assert set(store[name]) == {"stays", "x"}


@pytest.mark.proof
def test_a_log_that_was_cut_off(own_kafka: ApacheKafka, unique: Callable[[str], str]) -> None:
    """Guarantee 2: a broker that came back from a backup lacks records that were read."""
    topics = Topics(own_kafka.address, unique)
    name = topics.create()
    topics.produce(name, ("a", "1"), ("b", "1"))
    own_kafka.stop()
    backup = own_kafka.home / "backup"
    shutil.copytree(own_kafka.home / "data", backup)
    own_kafka.start()
    topics = Topics(own_kafka.address, unique)
    topics.produce(name, ("a", "2"), ("c", "2"))
    with GlobalStore(own_kafka.address, [Directory(name, decode=bytes)]) as store:
        assert values(store, name) == {"a": b"2", "b": b"1", "c": b"2"}
        own_kafka.stop()
        shutil.rmtree(own_kafka.home / "data")
        shutil.move(backup, own_kafka.home / "data")
        own_kafka.start()
        eventually(lambda: store.rebuilds() and store.state is StoreState.READY, 60)
        assert values(store, name) == {"a": b"1", "b": b"1"}


@pytest.mark.proof
def test_a_log_that_was_cut_off_and_has_grown_since(
    own_kafka: ApacheKafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Guarantee 2: the position is in the log, but it is not the log that was read; leader epochs tell (KIP-320)."""
    topics = Topics(own_kafka.address, unique)
    name = topics.create()
    topics.produce(name, ("a", "1"), ("b", "1"))
    own_kafka.stop()
    log, backup = own_kafka.home / "data" / f"{name}-0", own_kafka.home / "backup"
    shutil.copytree(log, backup)
    own_kafka.start()
    Topics(own_kafka.address, unique).commit(name, ("a", "2"), ("c", "2"))
    directory = Directory(name, decode=bytes)
    with GlobalStore(own_kafka.address, [directory], backend=RocksDB(tmp_path)) as store:
        assert values(store, name) == {"a": b"2", "b": b"1", "c": b"2"}
    own_kafka.stop()
    own_kafka.start()
    with GlobalStore(own_kafka.address, [directory], backend=RocksDB(tmp_path)) as store:
        assert not store.rebuilds()  # another leader alone means nothing
    own_kafka.stop()
    shutil.rmtree(log)
    shutil.move(backup, log)
    own_kafka.start()
    Topics(own_kafka.address, unique).produce(name, *((f"d{number}", "3") for number in range(10)))
    with GlobalStore(own_kafka.address, [directory], backend=RocksDB(tmp_path)) as store:
        eventually(lambda: rebuilt(store, name, "truncated"), 30)
        assert values(store, name) == {"a": b"1", "b": b"1"} | {f"d{number}": b"3" for number in range(10)}


def test_a_missing_topic_can_be_waited_for(topics: Topics, kafka: str) -> None:
    """Guarantee 1: missing_topic="wait" is ready once the topic is there and read."""
    name, existing = topics.unique("store"), topics.create()
    store = GlobalStore(kafka, [name, existing], missing_topic="wait", stall_timeout=3)
    starting = threading.Thread(target=store.start, daemon=True)
    starting.start()
    eventually(lambda: any(item["topic"] == name for item in store.blocking()))
    starting.join(3.5)
    assert store.state is StoreState.LOADING  # the stall time-out is about reading
    topics.create(name=name)
    topics.produce(name, ("a", "{}"))
    starting.join(20)
    assert set(store[name]) <= {"a"}
    store.barrier()
    assert set(store[name]) == {"a"}
    store.close()


def test_waiting_for_a_missing_topic_ends_with_the_start_timeout(topics: Topics, kafka: str) -> None:
    """Guarantee 1: the time-out names the topic."""
    name = topics.unique("store")
    store = GlobalStore(kafka, [name], missing_topic="wait", start_timeout=1)
    with pytest.raises(StartTimeout, match=f"{name}.*does not exist"):
        store.start()
    store.close()


def test_a_deletion_is_remembered_until_all_partitions_are_read(
    topics: Topics, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantees 1 and 2: while read anew too: an older record of the key may still come out of another partition."""
    monkeypatch.setattr(reader_module, "_TIDY_EVERY", 0.0)
    name, old = topics.create(2), 1_600_000_000_000
    topics.produce(name, ("a", "{}"))
    store = open_store(name)
    topics.delete(name)
    eventually(lambda: name not in topics.admin.list_topics(timeout=5).topics)
    with topics.transaction() as producer:
        with store._discovery._refreshing:  # so that the new topic is not read before there is something in it
            topics.create(2, name=name)
            topics.forget_producer()
            send(producer, name, [("k", '{"n":1}')], 0, old)
            topics.produce(name, ("k", None), ("other", "{}"), partition=1, timestamp=old + 1)
        place = Partition(name, 1)
        eventually(
            lambda: (
                store._progress.topics[name].phase is Phase.REBUILDING
                and store._progress.reading_positions().get(place) == 2
            ),
            30,
        )
        polled = store._reader.polled_at
        eventually(lambda: store._reader.polled_at > polled + 0.3)  # it has tidied up several times
        producer.commit_transaction(10)
    eventually(lambda: store.state is StoreState.READY, 30)
    assert set(store[name]) == {"other"}
    assert [contested.key for contested in store.contested()] == [b"k"]
