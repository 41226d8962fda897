"""Guarantee 1: ready means complete, whatever the log looks like."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compactory import Directory, GlobalStore, Partition, RocksDB, StartTimeout, StoreState
from compactory.ingest import discovery as discovery_module
from compactory.loading import Loading
from compactory.storage.backend import Backend
from compactory.storage.memory_backend import Memory
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]


def test_an_empty_topic_is_ready_at_once(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: an empty topic, of one partition or several."""
    single, three = topics.create(), topics.create(3)
    store = open_store(single, three)
    assert store.ready
    assert len(store[single]) == len(store[three]) == 0
    assert store.positions() == {Partition(single, 0): 0} | {Partition(three, number): 0 for number in range(3)}


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
    """Guarantee 1: StartTimeout names partition, position, target and the command that finds the transaction."""
    name = topics.create(2)
    topics.produce(name, ("a", "{}"), partition=1)
    owner = topics.unique("owner")
    with topics.transaction(owner) as producer:
        send(producer, name, [("b", "{}")], partition=1)
        store = GlobalStore(kafka, [name], **limit)
        with pytest.raises(StartTimeout) as caught:
            store.start()
        producer.abort_transaction(10)
    (blocking,) = caught.value.blocking
    reason = blocking.pop("reason")
    assert blocking == {"topic": name, "partition": 1, "position": 1, "target": 2}
    assert reason.startswith("an open transaction holds the last stable offset at 1; its producer is listed by: kafka-")
    assert reason.endswith(f"describe-producers --topic {name} --partition 1")
    assert f"{name} partition 1 is at 1 of 2: {reason}" in str(caught.value)
    assert ("no progress for 1 s" if "stall_timeout" in limit else "not ready in 1 s") in str(caught.value)
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
            offset = store["d"].entry("k1").offset
            return offset < store.positions()[Partition(name, 0)] - 3 and count_records(topics, name) < 150

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
    for name, start in ((some, 7), (none, 10)):
        topics.produce(name, *((f"k{number}", "{}") for number in range(10)))
        topics.cut(name, start)
    store = open_store(some, none)
    assert set(store[some]) == {"k7", "k8", "k9"}
    assert len(store[none]) == 0
    assert store.positions() == {Partition(some, 0): 10, Partition(none, 0): 10}


def test_several_topics_and_partitions(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: all of them, with two directories over one topic."""
    single, four = topics.create(), topics.create(4)
    topics.produce(single, ("a", '{"id":1}'))
    for partition in range(4):
        topics.commit(four, *((f"p{partition}-{number}", '{"id":2}') for number in range(50)), partition=partition)
    store = open_store(single, four, Directory("again", topic=four, decode=str))
    assert store[single] == {"a": {"id": 1}}
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


@pytest.fixture(params=["memory", "disk"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Both backends."""
    return RocksDB(tmp_path) if request.param == "disk" else Memory()


def test_shapes_together(topics: Topics, open_store: Opener, backend: Backend) -> None:
    """Guarantee 1: nothing but tombstones, a start above zero, an empty partition among full ones, aborted tails."""
    tombstones, cut, gaps = topics.create(), topics.create(2, cleanup_policy="delete"), topics.create(3)
    topics.produce(tombstones, ("a", "{}"), ("a", None), ("never", None))
    topics.produce(cut, *((f"k{number}", "{}") for number in range(5)), partition=1)
    topics.cut(cut, 3, partition=1)
    for partition in (0, 2):
        topics.commit(gaps, (f"p{partition}", "{}"), partition=partition)
        topics.abort(gaps, (f"p{partition}", None), partition=partition)
    store = open_store(tombstones, cut, gaps, backend=backend)
    assert len(store[tombstones]) == 0
    assert set(store[cut]) == {"k3", "k4"}
    assert set(store[gaps]) == {"p0", "p2"}
    assert set(store.lag().values()) == {0}


def test_producers_that_are_faster_than_the_reader(topics: Topics, kafka: str, backend: Backend) -> None:
    """Guarantee 1: who never catches up gets ready all the same: the target is the end as it was first seen."""
    name, stop = topics.create(), threading.Event()
    topics.produce(name, *((f"k{number}", str(number)) for number in range(500)))

    def write() -> None:
        while not stop.is_set():
            topics.produce(name, *(("more", "x") for _ in range(200)))

    def slow(value: bytes) -> bytes:
        if value == b"x" and threading.current_thread().name == "compactory-reader":
            stop.wait(0.001)
        return value

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        with GlobalStore(kafka, [Directory(name, decode=slow)], backend=backend, start_timeout=60) as store:
            assert len(store[name]) >= 500
            assert eventually(lambda: sum(store.lag().values()), 30), "it is behind, and ready"
            assert store.ready
            stop.set()
            store.barrier(60)
    finally:
        stop.set()
        writer.join(30)


def test_hundreds_of_partitions(topics: Topics, open_store: Opener, backend: Backend) -> None:
    """Guarantee 1: each has a target of its own, most of them none."""
    name = topics.create(200)
    for partition in range(0, 200, 7):
        topics.produce(name, (f"k{partition}", "{}"), partition=partition)
    store = open_store(name, backend=backend)
    assert len(store[name]) == 29
    assert len(store.positions()) == 200


def test_a_producer_that_died_in_its_transaction(topics: Topics, open_store: Opener) -> None:
    """Guarantee 1: the cluster aborts it after transaction.timeout.ms; until then start waits."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    call = (
        "import os; from tests.store.topics import Topics, send\n"
        f"topics = Topics({topics.address!r}, str)\n"
        f"with topics.transaction({topics.unique('dead')!r}, transaction_timeout_ms=3000) as producer:\n"
        f"    send(producer, {name!r}, [('b', '{{}}')]); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", call], check=True, timeout=60)
    topics.produce(name, ("c", "{}"))
    store = open_store(name, stall_timeout=60)
    assert set(store[name]) == {"a", "c"}


def test_progress_is_told(topics: Topics, kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    """Guarantee 1: rising figures, by the thread that started; a callback that raises is logged once and left alone."""
    name, reports, raised = topics.create(2), list[Loading](), list[Loading]()

    def tell(loading: Loading) -> None:
        reports.append(loading)

    def fail(loading: Loading) -> None:
        raised.append(loading)
        raise ValueError("not today")

    topics.produce(name, *((f"k{number}", "{}") for number in range(100)))
    with topics.transaction() as producer:
        send(producer, name, [("open", "{}")], partition=1)
        stores = [GlobalStore(kafka, [name], on_progress=listener) for listener in (tell, fail)]
        starts = [threading.Thread(target=store.start, daemon=True) for store in stores]
        for start in starts:
            start.start()
        eventually(lambda: raised and len(reports) > 3 and reports[-1].read == 100, 30)
        producer.commit_transaction(10)
    for store, start in zip(stores, starts, strict=True):
        start.join(30)
        assert store.ready
        store.close()
    assert [report.read for report in reports] == sorted(report.read for report in reports)
    assert {report.total for report in reports} <= {0, 101}
    assert reports[-1].share < 1
    assert len(raised) == 1
    assert len([record for record in caplog.records if "on_progress raised" in record.getMessage()]) == 1


def test_loading_while_a_topic_is_read_anew(topics: Topics, open_store: Opener, backend: Backend) -> None:
    """Guarantees 1 and 2: of the topic that is read, not of those that were read beyond their target long ago."""
    name, idle = topics.create(), topics.create()
    topics.produce(name, ("a", "{}"))
    store = open_store(name, idle, backend=backend)
    topics.produce(idle, *((f"k{number}", "{}") for number in range(50)))
    store.barrier(30)
    topics.delete(name)
    eventually(lambda: name not in topics.admin.list_topics(timeout=5).topics)
    with topics.transaction() as producer:
        with store._discovery._refreshing:  # so that the new topic is not read before there is something in it
            topics.create(name=name)
            topics.forget_producer()
            topics.produce(name, ("b", "{}"))
            send(producer, name, [("c", "{}")])
        eventually(lambda: store.loading().total == 2 and store.loading().read == 1, 30)
        assert store.state is StoreState.STALE
        producer.commit_transaction(10)
    eventually(lambda: store.state is StoreState.READY, 30)
    assert set(store[name]) == {"b", "c"}
    assert store.loading().share == 1
