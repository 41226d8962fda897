"""Starting and ending a store: clear refusals, nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from compactory import (
    BackendLocked,
    CompactoryError,
    ConfigError,
    Directory,
    DirectoryWriter,
    GlobalStore,
    NotReady,
    Partition,
    RocksDB,
    StoreClosed,
    StoreFailed,
    StoreState,
    Unreachable,
)
from compactory.ingest import gc_tuning as memory
from compactory.ingest.engine import Engine
from compactory.kafka.client import Kafka
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


def test_a_start_that_failed_lets_go_of_its_folder(topics: Topics, kafka: str, tmp_path: Path) -> None:
    """Guarantee 7: the next attempt, in the same process too, is not in the way of the first."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    failed = GlobalStore("127.0.0.1:1", [name], backend=RocksDB(tmp_path), stall_timeout=0.5)
    with pytest.raises(Unreachable):
        failed.start()
    with pytest.raises(Unreachable):
        GlobalStore("127.0.0.1:1", [name], backend=RocksDB(tmp_path), stall_timeout=0.5).start()
    with GlobalStore(kafka, [name], backend=RocksDB(tmp_path)) as store:
        failed.close()
        assert set(store[name]) == {"a"}
    with pytest.raises(StoreClosed):
        len(failed[name])


def test_a_store_that_is_dropped_lets_go_of_its_folder(topics: Topics, kafka: str, tmp_path: Path) -> None:
    """Guarantee 7: by a thread of its own, as an event loop may be what dropped it; its views say that it is closed."""
    name = topics.create()
    store = GlobalStore(kafka, [name], backend=RocksDB(tmp_path))
    store.start()
    view, reader = store[name], store._reader
    stop, threads = reader.stop, []
    reader.stop = lambda: (threads.append(threading.current_thread()), stop())[1]  # type: ignore[method-assign,func-returns-value]
    del store
    gc.collect()
    eventually(lambda: threads)
    assert threads[0] is not threading.current_thread()
    with pytest.raises(StoreClosed):
        len(view)
    eventually(lambda: not our_threads())
    with GlobalStore(kafka, [name], backend=RocksDB(tmp_path)):
        pass


def test_a_store_that_replaces_a_dropped_one_waits_for_its_folder(topics: Topics, kafka: str, tmp_path: Path) -> None:
    """As a cell of a notebook does that is run again."""
    name = topics.create()
    for _ in range(3):
        store = GlobalStore(kafka, [name], backend=RocksDB(tmp_path))
        store.start()
    with pytest.raises(BackendLocked, match="another store of this process"):
        GlobalStore(kafka, [name], backend=RocksDB(tmp_path)).start()
    store.close()


def test_ends_are_asked_for_while_the_store_runs(topics: Topics, kafka: str) -> None:
    """Guarantee 7: before and after that an error says so."""
    store = GlobalStore(kafka, [topics.create()])
    with pytest.raises(NotReady):
        store.end_offsets()
    with store:
        assert list(store.end_offsets().values()) == [0]
    with pytest.raises(StoreClosed):
        store.end_offsets()


def test_callbacks_that_raise_end_nothing(topics: Topics, kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    """Guarantee 7: statistics, client errors and listeners of the user's, with readers and writers."""
    name, called = topics.create(), []

    def fail(*_: object) -> None:
        called.append(threading.current_thread().name)
        raise RuntimeError("of the user's")

    properties = {"bootstrap.servers": kafka, "stats_cb": fail, "statistics.interval.ms": 10, "error_cb": fail}
    with (
        GlobalStore(properties, [name]) as store,
        DirectoryWriter(properties, Directory(name, writable=True)) as writer,
    ):
        store.subscribe(fail)
        writer.put("a", {})
        eventually(lambda: {"compactory-reader", "compactory-writer"} <= set(called))
        store.wait_for(writer.put("b", {}))
        assert set(store[name]) == {"a", "b"}
        assert store.live
    said = [record.getMessage() for record in caplog.records if "raised" in record.getMessage()]
    assert len([line for line in said if line.startswith("a listener")]) == 1


def test_a_users_error_callback_is_called_beside_ours() -> None:
    """What is wrong is said all the same, and by producers too."""
    heard: list[str] = []
    properties = {"bootstrap.servers": "127.0.0.1:1", "error_cb": lambda error: heard.append(error.str())}
    with pytest.raises(Unreachable, match="refused"):
        GlobalStore(properties, ["d"], stall_timeout=1).start()
    assert any("refused" in text for text in heard)
    heard.clear()
    ours: list[str] = []
    producer = Kafka(properties).producer({}, {}, lambda error: ours.append(error.str()))
    while not (heard and ours):
        producer.poll(0.1)
    assert heard == ours


def test_a_forked_child_frees_an_inherited_client(kafka: str) -> None:
    """Guarantee 7: destroying it would wait for threads that the child does not have."""
    for _ in range(3):
        cluster = [Kafka(kafka)]
        cluster[0].topics(["nothing"])

        def use_and_free(cluster: list[Kafka] = cluster) -> bool:
            cluster[0].close()
            found = cluster[0].cluster_id(10)
            cluster.clear()
            gc.collect()
            return found is not None

        assert forked(use_and_free)


def test_lag_while_a_topic_is_read_anew(topics: Topics, open_store: Opener) -> None:
    """Guarantee 2: figures may be asked for at any moment."""
    store = open_store(topics.create())
    progress = store._progress
    [topic] = progress.topics.values()
    ends = {Partition("t", number): 1 for number in range(100)}
    stopped, failures = threading.Event(), []

    def ask() -> None:
        while not stopped.is_set():
            try:
                store.lag()
            except RuntimeError as error:
                failures.append(error)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(300):
        with progress._changed:
            topic.ends = dict(ends)
            for part in ends:
                del topic.ends[part]
    stopped.set()
    asking.join()
    assert not failures


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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("backend", 5),
        ("backend", RocksDB),
        ("tune_gc", "no"),
        ("start_stale", 1),
        ("on_progress", "log"),
        ("on_bad_record", "ignore"),
        ("validate", "never"),
        ("stall_timeout", -1),
        ("polling_timeout", "soon"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{option} must be .*, not "):
        GlobalStore("127.0.0.1:1", ["d"], **{option: value})  # type: ignore[arg-type]


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


@pytest.fixture
def silent() -> Iterator[str]:
    """Three listeners that take connections and say nothing."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in listening)
    for each in listening:
        each.close()


def test_a_start_ends_in_time_where_nobody_answers(silent: str) -> None:
    """Guarantee 7: one deadline for all that is asked, what is found out about the listeners included."""
    began = time.monotonic()
    with pytest.raises(Unreachable):
        GlobalStore(silent, ["d"], start_timeout=3).start()
    assert time.monotonic() - began < 6


def test_close_ends_a_start_in_another_thread(silent: str) -> None:
    """Guarantee 7: whatever it waits for."""
    store, raised = GlobalStore(silent, ["d"]), []

    def start() -> None:
        try:
            store.start()
        except CompactoryError as error:
            raised.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    eventually(lambda: store._engine.kafka._client is not None)
    began = time.monotonic()
    store.close()
    starting.join(30)
    assert time.monotonic() - began < 4
    assert isinstance(raised[0], StoreClosed)
