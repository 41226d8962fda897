"""Guarantee 1: ready means complete, whatever the log looks like."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from compactory import Directory, GlobalStore, Partition, StartTimeout, StoreState
from compactory import discovery as discovery_module
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]


def test_an_empty_topic_is_ready_at_once(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: an empty topic, of one partition or several."""
    one, three = topics.create(), topics.create(3)
    store = open_store(one, three)
    assert store.ready
    assert len(store[one]) == len(store[three]) == 0
    assert store.positions() == {Partition(one, 0): 0} | {Partition(three, number): 0 for number in range(3)}


def test_a_tail_of_control_records_is_passed(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: every transaction ends with a control record, which no consumer ever delivers."""
    name = topics.create()
    for number in range(5):
        topics.commit(name, (f"k{number}", f'{{"n":{number}}}'))
    store = open_store(name)
    assert store[name] == {f"k{number}": {"n": number} for number in range(5)}
    assert store.positions() == {Partition(name, 0): 10}
    assert store.lag() == {Partition(name, 0): 0}


def test_aborted_transactions_at_the_tail_are_passed_and_hidden(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: aborted data is neither waited for nor shown."""
    name = topics.create()
    topics.produce(name, ("a", '{"n":1}'))
    topics.abort(name, ("a", '{"n":2}'), ("b", '{"n":2}'))
    topics.abort(name, ("a", None))
    store = open_store(name)
    assert store[name] == {"a": {"n": 1}}
    store.barrier()


def test_only_aborted_transactions(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: a topic that holds nothing but aborted data."""
    name = topics.create()
    topics.abort(name, ("a", "{}"))
    assert dict(open_store(name)[name]) == {}


def test_an_open_transaction_below_the_watermark_is_waited_for(topics: Topics, kafka: str) -> None:
    """Guarantee 1: what lies behind an open transaction is part of "complete"; start goes on when it ends."""
    name = topics.create()
    topics.produce(name, ("before", "{}"))
    with topics.transaction() as producer:
        send(producer, name, [("inside", "{}")])
        topics.produce(name, ("behind", "{}"))
        store = GlobalStore(kafka, [name])
        starting = threading.Thread(target=store.start, daemon=True)
        starting.start()
        eventually(lambda: store.positions() == {Partition(name, 0): 1})
        starting.join(0.5)
        assert store.state is StoreState.LOADING
        producer.commit_transaction(10)
    starting.join(20)
    assert store.ready
    assert set(store[name]) == {"before", "inside", "behind"}
    store.close()


@pytest.mark.parametrize("limit", [{"stall_timeout": 1.0}, {"start_timeout": 1.0}])
def test_the_time_out_names_what_an_open_transaction_blocks(
    topics: Topics, kafka: str, limit: dict[str, float]
) -> None:
    """Guarantee 1: StartTimeout names partition, position, target and the open transaction."""
    name = topics.create(2)
    topics.produce(name, ("a", "{}"), partition=1)
    with topics.transaction() as producer:
        send(producer, name, [("b", "{}")], partition=1)
        store = GlobalStore(kafka, [name], **limit)
        with pytest.raises(StartTimeout) as caught:
            store.start()
        producer.abort_transaction(10)
    reason = "an open transaction holds the last stable offset at 1"
    assert caught.value.blocking == [{"topic": name, "partition": 1, "position": 1, "target": 2, "reason": reason}]
    assert f"{name} partition 1 is at 1 of 2" in str(caught.value)
    assert reason in str(caught.value)
    assert store.state is StoreState.FAILED
    store.close()


def test_compaction_holes_are_read_over(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: offsets that compaction took away are not waited for."""
    name = topics.create(
        segment_ms="50", min_cleanable_dirty_ratio="0.001", delete_retention_ms="0", max_compaction_lag_ms="100"
    )
    for number in range(200):
        topics.produce(name, (f"k{number % 3}", f'{{"n":{number}}}'))

    def has_holes() -> bool:
        topics.produce(name, ("k0", '{"n":999}'))  # rolls the segment, which makes the older ones cleanable
        with GlobalStore(topics.address, [Directory("d", topic=name, decode=bytes)]) as store:
            seen = store["d"].entry("k1").offset
            return seen < store.positions()[Partition(name, 0)] - 3 and count_records(topics, name) < 150

    eventually(has_holes, 60)
    store = open_store(name)
    assert store[name] == {"k0": {"n": 999}, "k1": {"n": 199}, "k2": {"n": 197}}


def count_records(topics: Topics, name: str) -> int:
    """Count what the log still holds."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": topics.address,
            "group.id": "count",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    count = 0
    while not (message := consumer.poll(10)).error():
        count += message is not None
    consumer.close()
    return count


def test_a_log_that_starts_above_zero(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: log start > 0, with records left and with none."""
    some, none = topics.create(cleanup_policy="delete"), topics.create(cleanup_policy="delete")
    for name, left in ((some, 7), (none, 10)):
        topics.produce(name, *((f"k{number}", "{}") for number in range(10)))
        topics.cut(name, left)
    store = open_store(some, none)
    assert set(store[some]) == {"k7", "k8", "k9"}
    assert len(store[none]) == 0
    assert store.positions() == {Partition(some, 0): 10, Partition(none, 0): 10}


def test_several_topics_and_partitions(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: all of them, with two directories over one topic."""
    one, four = topics.create(), topics.create(4)
    topics.produce(one, ("a", '{"id":1}'))
    for partition in range(4):
        topics.commit(four, *((f"p{partition}-{number}", '{"id":2}') for number in range(50)), partition=partition)
    store = open_store(one, four, Directory("again", topic=four, decode=str))
    assert store[one] == {"a": {"id": 1}}
    assert len(store[four]) == len(store["again"]) == 200
    assert store["again"]["p3-49"] == '{"id":2}'
    assert store["again"].entry("p3-49").partition == 3


def test_a_head_that_moves_while_it_is_read(topics: Topics, kafka: str) -> None:
    """Guarantee 1: the target is captured once, so writers can't keep a store from getting ready."""
    name = topics.create()
    topics.produce(name, *((f"k{number}", f'{{"n":{number}}}') for number in range(2000)))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            topics.produce(name, *((f"k{number + extra}", '{"n":-1}') for extra in range(50)))
            number = (number + 50) % 2000

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        for _ in range(5):
            with GlobalStore(kafka, [name], start_timeout=20) as store:
                assert len(store[name]) == 2000
    finally:
        stop.set()
        writer.join(30)


def test_a_partition_added_after_ready_is_found(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: within five seconds, without anybody asking."""
    name = topics.create(1)
    topics.produce(name, ("old", "{}"))
    store = open_store(name)
    topics.grow(name, 3)
    began = time.monotonic()
    topics.produce(name, ("new", "{}"), partition=2)
    eventually(lambda: "new" in store[name], 10)
    assert time.monotonic() - began < 5
    assert store.positions().keys() == {Partition(name, number) for number in range(3)}
    assert store.ready


def test_a_barrier_covers_a_partition_added_just_now(
    topics: Topics, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantees 1 and 6: a barrier asks for the partitions too, not only for the ends of those known."""
    monkeypatch.setattr(discovery_module, "_INTERVAL", 3600.0)
    name = topics.create(1)
    store = open_store(name)
    topics.grow(name, 2)
    topics.produce(name, ("new", "{}"), partition=1)
    store.barrier(10)
    assert "new" in store[name]


def test_a_partition_added_while_loading_delays_ready(topics: Topics, kafka: str) -> None:
    """Guarantee 1: partitions known by then count."""
    name = topics.create(1)
    with topics.transaction() as producer:
        send(producer, name, [("open", "{}")])
        store = GlobalStore(kafka, [name])
        starting = threading.Thread(target=store.start, daemon=True)
        starting.start()
        eventually(lambda: store.positions() == {Partition(name, 0): 0})
        topics.grow(name, 2)
        topics.produce(name, ("new", "{}"), partition=1)
        eventually(lambda: Partition(name, 1) in store.positions())
        producer.commit_transaction(10)
    starting.join(20)
    assert set(store[name]) == {"open", "new"}
    store.close()
