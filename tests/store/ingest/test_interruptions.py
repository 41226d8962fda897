"""Reads and waits under way when a store is closed, forked, read anew, damaged, or cut off from Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from compactory import Directory, GlobalStore, RocksDB, StoreState, Unreachable, WaitTimeout
from compactory.errors import StoreClosed
from compactory.ingest import reader
from compactory.ingest.progress import Progress
from compactory.records import Rebuild, RebuildCause
from compactory.storage.memory_backend import Memory
from tests.forks import forked
from tests.stack.apache_kafka import ApacheKafka
from tests.store.ingest.test_rebuild import recreate
from tests.store.pausing import paused
from tests.store.tables import Log
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]


class Judge:
    """A ``decode`` that accepts the values in ``accepted``, and waits on demand."""

    def __init__(self, *accepted: str) -> None:
        self.accepted = set(accepted)
        self.going_on = threading.Event()
        self.going_on.set()

    def __call__(self, value: bytes) -> str:
        self.going_on.wait(30)
        if value.decode() not in self.accepted:
            raise ValueError("not known yet")
        return value.decode()


@pytest.mark.parametrize("disk", [False, True])
def test_what_is_gone_through_while_the_store_is_closed(disk: bool, tmp_path: Path) -> None:
    """Guarantee 2: whoever goes through the entries is told that the rest is missing."""
    backend = RocksDB(tmp_path) if disk else Memory()
    log = Log(Directory("d"), storage=backend.open("d"))
    for number in range(300):
        log.put(f"{number:03d}", "{}")
    under_way = [iter(log.view.items()), log.view.prefix(""), log.view.range("1"), iter(log.view.values())]
    for iterator in under_way:
        next(iterator)
    log.storage.close()
    for iterator in under_way:
        with pytest.raises(StoreClosed):
            list(iterator)
    backend.close()


@pytest.mark.parametrize("disk", [False, True])
def test_half_a_surrogate_pair_is_in_no_directory(disk: bool, tmp_path: Path) -> None:
    backend = RocksDB(tmp_path) if disk else Memory()
    log = Log(Directory("d"), storage=backend.open("d"))
    keys = ["", "\0", "a", "a\0", "z", "\ud7ff", "\ue000", "\U0001f600", "x" * 5000]
    for key in keys:
        log.put(key, "{}")
    half = "\ud83d"
    assert half not in log.view
    assert log.view.get(half) is None
    assert list(log.view.prefix(half)) == []
    log.put("\ufffd", "{}")  # what stands for bytes that are no text, where somebody decodes them carelessly
    for data in (b"\xff", b"\xed\xa0\xbd"):
        with pytest.raises(KeyError):
            log.view.record(data)
    log.delete("\ufffd")
    assert list(log.view.keys_from(half)) == list(log.view.keys_from("\ud7ff")) == ["\ue000", "\U0001f600"]
    assert [key for key, _ in log.view.range(half)] == ["\ue000", "\U0001f600"]
    assert [key for key, _ in log.view.range()] == sorted(keys)
    assert [key for key, _ in islice(log.view.range("a\0\0"), 2)] == ["x" * 5000, "z"]
    log.storage.close()
    backend.close()


def test_close_in_a_forked_child_while_the_topic_is_read_anew(
    topics: Topics, open_store: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guarantees 3 and 7: the child returns, and what the parent is loading stays where it is."""
    name = topics.create()
    topics.produce(name, ("old", "{}"))
    store = open_store(name, backend=RocksDB(tmp_path))
    with topics.transaction() as producer:
        recreate(topics, name)
        send(producer, name, [("new", "{}")])  # at once, before the store asks how far the new topic goes
        # that positions are gone may be seen first: then it is read anew once more when the topic's id is
        eventually(lambda: "(recreated)" in caplog.text and len(list(tmp_path.glob("*/0*"))) == 2, 30)
        assert store.state is StoreState.STALE
        generations = sorted(tmp_path.glob("*/0*"))

        forked(store.close)
        assert sorted(tmp_path.glob("*/0*")) == generations
        producer.commit_transaction(10)
    eventually(lambda: store.state is StoreState.READY, 30)
    assert set(store[name]) == {"new"}
    assert "corrupt" not in [cause for _, cause in store.rebuilds()]


def test_a_retry_while_the_topic_is_read_anew(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 4: it is about what is served, and visible when the call returns."""
    name, judge = topics.create(), Judge("good")
    topics.produce(name, ("a", "late"), ("b", "never"))
    store = open_store(Directory("d", topic=name, decode=judge, cache_decoded=True), backend=RocksDB(tmp_path))
    with topics.transaction() as producer:
        recreate(topics, name)
        send(producer, name, [("new", "good")])
        eventually(lambda: store.loading().total and store.state is StoreState.STALE, 30)
        judge.accepted.add("late")
        assert [error.key for error in store.retry()] == [b"b"]
        assert store["d"]["a"] == "late"
        assert store.skip(*store.quarantine()) == []
        assert store["d"].get("b") is None
        producer.commit_transaction(10)
    eventually(lambda: store.state is StoreState.READY, 30)
    assert dict(store["d"].items()) == {"new": "good"}


def test_a_retry_that_hangs_is_waited_for_as_long_as_was_said(topics: Topics, open_store: Opener) -> None:
    """Guarantee 7: and the caller's processor has nothing to do meanwhile."""
    name, judge = topics.create(), Judge()
    topics.produce(name, ("a", "late"))
    store = open_store(Directory("d", topic=name, decode=judge))
    judge.going_on.clear()
    judge.accepted.add("late")
    began, busy = time.monotonic(), time.thread_time()
    with pytest.raises(WaitTimeout, match="is not done with it"):
        store.retry(timeout=0.5)
    assert 0.4 < time.monotonic() - began < 5
    assert time.thread_time() - busy < 0.2
    with pytest.raises(WaitTimeout, match="did not get to it"):
        store.retry(timeout=0.2)
    judge.going_on.set()
    eventually(lambda: not store.quarantine())
    assert store["d"]["a"] == "late"


def test_damage_among_bad_records_is_read_anew(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 3: it is met when the store opens them, and is no reason not to start."""
    name = topics.create()
    topics.produce(name, *((f"k{number}", f'{{"n":{number}}}') for number in range(300)))
    topics.produce(name, *((f"bad{number}", f"bad {number}" * 50) for number in range(50)))
    disk = {"compression": "none"}
    open_store(name, backend=RocksDB(tmp_path, **disk)).close()  # type: ignore[arg-type]
    for table in tmp_path.glob("*/*/*.sst"):
        data = bytearray(table.read_bytes())
        if b"bad 25" in data:  # the values of bad records
            middle = (data.index(b"bad 25") + data.rindex(b"bad 25")) // 2
            data[middle : middle + 100] = bytes(100)
            table.write_bytes(data)
    store = open_store(name, backend=RocksDB(tmp_path, **disk))  # type: ignore[arg-type]
    assert len(store[name]) == 300
    assert len(store.quarantine()) == 50
    eventually(lambda: bool(list(tmp_path.glob("*/damaged-*"))))


def test_damage_among_remembered_deletions_is_read_anew(
    topics: Topics, open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantees 3 and 7: it is met by the reader's own tidying, and does not kill it."""
    name = topics.create(2)
    topics.produce(name, *((f"k{number}", f'{{"n":{number}}}') for number in range(300)))
    topics.produce(name, *((f"grave{number:04d}", None) for number in range(1000)), partition=1)
    disk = {"compression": "none"}
    open_store(name, backend=RocksDB(tmp_path, **disk)).close()  # type: ignore[arg-type]
    table = max(tmp_path.glob("*/*/*.sst"), key=lambda path: path.read_bytes().count(b"grave"))
    data = bytearray(table.read_bytes())
    middle = (data.index(b"grave") + data.rindex(b"grave")) // 2
    data[middle : middle + 100] = bytes(100)
    table.write_bytes(data)
    monkeypatch.setattr(reader, "_TIDY_EVERY", 0.2)
    store = open_store(name, backend=RocksDB(tmp_path, **disk))  # type: ignore[arg-type]
    eventually(lambda: store.rebuilds().get((name, "corrupt")) or store.state is StoreState.FAILED, 30)
    eventually(lambda: bool(list(tmp_path.glob("*/damaged-*"))), 30)  # once the new generation is served
    eventually(lambda: store.state is StoreState.READY, 30)
    assert len(store[name]) == 300


def test_a_topic_that_is_back_as_another_one_is_not_fresh() -> None:
    """Guarantee 2: not even until the reader begins to read it anew."""
    progress = Progress(["t"])
    progress.move(StoreState.LOADING)
    progress.finish("t")
    progress.serve()
    progress.note_absent(["t"])
    assert progress.stale() == {"t": "the topic does not exist any more"}
    progress.demand("t", Rebuild(RebuildCause.RECREATED, "it was created again"))
    progress.note_absent([])
    assert progress.state is StoreState.STALE
    progress.begin_rebuild("t")
    assert progress.stale() == {"t": "it was created again"}
    progress.finish("t")
    assert progress.state is StoreState.READY


def test_barriers_while_kafka_is_away(own_kafka: ApacheKafka, unique: Callable[[str], str]) -> None:
    """Guarantee 7: each ends at its own deadline, whoever asks beside it, and when the store is closed."""
    topics = Topics(own_kafka.address, unique)
    name = topics.create()
    waits: list[tuple[float, type]] = []

    def barrier(store: GlobalStore, timeout: float) -> None:
        began = time.monotonic()
        with pytest.raises((Unreachable, StoreClosed)) as ended:
            store.barrier(timeout)
        waits.append((time.monotonic() - began, ended.type))

    def start(store: GlobalStore, number: int, timeout: float) -> list[threading.Thread]:
        threads = [threading.Thread(target=barrier, args=(store, timeout)) for _ in range(number)]
        for thread in threads:
            thread.start()
        return threads

    with GlobalStore(own_kafka.address, [name]) as store, paused(own_kafka):
        eventually(lambda: _is_away(store))  # what was asked just before may still be answered
        for thread in start(store, 8, 1):
            thread.join()
        assert [kind for _, kind in waits] == [Unreachable] * 8
        assert max(seconds for seconds, _ in waits) < 4
        waits.clear()
        waiting = start(store, 2, 60)
        began = time.monotonic()
        store.close()
        for thread in waiting:
            thread.join()
        assert time.monotonic() - began < 15
        assert [kind for _, kind in waits] == [StoreClosed] * 2


def _is_away(store: GlobalStore) -> bool:
    try:
        store.end_offsets(0.5)
    except Unreachable:
        return True
    return False
