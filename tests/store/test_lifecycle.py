"""Starting and ending a store: clear refusals, nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from compactory import CompactoryError, ConfigError, GlobalStore, StoreFailed, StoreState, Unreachable
from compactory.ingest import gc_tuning as memory
from compactory.ingest.engine import Engine
from tests.forks import forked
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("compactory-")]


@pytest.fixture
def collector() -> Iterator[None]:
    """Leaves the cyclic collector as it was; waits until no store of an earlier test holds it paused."""
    eventually(lambda: memory._pauses == 0)
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


def test_starting_and_closing_over_and_over_leaves_nothing_behind(topics: Topics, kafka: str) -> None:
    """Guarantee 7: close is complete on return."""
    name = topics.create(2)
    topics.produce(name, ("a", "{}"))
    before = len(our_threads())
    for _ in range(10):
        store = GlobalStore(kafka, [name])
        store.start()
        assert "a" in store[name]
        store.close()
        store.close()
        assert len(our_threads()) == before


def test_closing_from_many_threads_at_any_moment(topics: Topics, kafka: str) -> None:
    """Guarantee 7: close may come before, during and after start."""
    name = topics.create()
    for delay in (0.0, 0.001, 0.003, 0.005, 0.007, 0.009, 0.012, 0.02, 0.05, 0.1):
        store = GlobalStore(kafka, [name])

        def start(store: GlobalStore = store) -> None:
            with contextlib.suppress(CompactoryError):  # or it was ready before it was closed
                store.start()

        threads = [threading.Thread(target=start)]
        threads += [threading.Timer(delay, store.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "it waits for a client that is gone"
        assert store.state is StoreState.CLOSED
    eventually(lambda: not our_threads())


def test_a_store_that_is_dropped_stops_its_threads(topics: Topics, kafka: str) -> None:
    name = topics.create()
    store = GlobalStore(kafka, [name])
    store.start()
    del store
    gc.collect()
    eventually(lambda: not our_threads())


def test_a_store_starts_once(topics: Topics, open_store: Opener) -> None:
    store = open_store(topics.create())
    with pytest.raises(CompactoryError, match="starts once"):
        store.start()


def test_missing_topics_are_named_all_at_once_with_the_nearest(topics: Topics, kafka: str) -> None:
    name = topics.create()
    store = GlobalStore(kafka, [name, name[:-1] + "x", "entirely-different"])
    with pytest.raises(ConfigError) as caught:
        store.start()
    assert len(caught.value.problems) == 2
    text = str(caught.value)
    assert f"topic {name[:-1] + 'x'!r} does not exist on {kafka}: did you mean" in text
    assert "'entirely-different' does not exist" in text
    assert "cleanup.policy=compact" in text
    assert not our_threads()


def test_an_unreachable_broker_is_a_clear_error() -> None:
    began = time.monotonic()
    store = GlobalStore("127.0.0.1:1", ["d"], stall_timeout=1.0)
    with pytest.raises(Unreachable, match=r"Kafka at 127\.0\.0\.1:1 was not reached .*refused"):
        store.start()
    assert time.monotonic() - began < 10
    assert store.state is StoreState.FAILED


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux lists them")
def test_a_start_that_failed_leaves_no_client_behind() -> None:
    """Neither a store nor an error that is kept for long keeps connecting."""
    before = len(list(Path("/proc/self/task").iterdir()))
    kept = []
    for _ in range(3):
        store = GlobalStore("127.0.0.1:1", ["d"], stall_timeout=0.2)
        with pytest.raises(Unreachable) as caught:
            store.start()
        kept.append((store, caught.value))
    eventually(lambda: len(list(Path("/proc/self/task").iterdir())) <= before)
    assert len(kept) == 3


def test_bad_options_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        GlobalStore("", ["a", "a"], on_bad_record="ignore", validate="never", stall_timeout=0)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 5


def test_the_collector_is_paused_inside_start_only(
    topics: Topics, kafka: str, monkeypatch: pytest.MonkeyPatch, collector: None
) -> None:
    name = topics.create()
    seen: list[bool] = []
    load = Engine.load
    monkeypatch.setattr(Engine, "load", lambda self, began: (seen.append(gc.isenabled()), load(self, began)))
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        for tune in (True, False):
            with GlobalStore(kafka, [name], tune_gc=tune):
                assert gc.isenabled() is enabled
    assert seen == [False, True, False, False]


def test_the_collector_is_restored_after_overlapping_and_failing_starts(
    topics: Topics, kafka: str, collector: None
) -> None:
    gc.enable()
    stores = [GlobalStore(kafka, [topics.create()]) for _ in range(4)] + [GlobalStore(kafka, ["missing"])]

    def start(store: GlobalStore) -> None:
        try:
            store.start()
        except ConfigError:
            return

    threads = [threading.Thread(target=start, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert gc.isenabled()
    for store in stores:
        store.close()


def test_a_store_made_before_a_fork_is_refused_in_the_child(topics: Topics, kafka: str) -> None:
    """Guarantee 7: a child has no reader thread, so neither start nor a lookup may pretend otherwise."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    fresh, started = GlobalStore(kafka, [name]), GlobalStore(kafka, [name])
    started.start()

    def child() -> None:
        with pytest.raises(CompactoryError, match="in each worker"):
            fresh.start()
        with pytest.raises(StoreFailed, match="in each worker"):
            started[name]["a"]

    forked(child)
    assert "a" in started[name]
    started.close()


def test_a_child_of_a_process_with_a_failed_store_lives(topics: Topics, kafka: str) -> None:
    """Guarantee 7: the traceback of what ended a store may hold a client, which the child must not destroy."""
    name = topics.create()
    store = GlobalStore(kafka, [name])
    store.start()
    consumer = store._engine.kafka.consumer("follow")
    consumer.incremental_assign([TopicPartition(name, 0, 0)])
    consumer.consume(1, 0.1)
    store._progress.move(StoreState.FAILED, RuntimeError(consumer))
    del consumer  # the error alone holds it now
    forked(gc.collect)
    store.close()
