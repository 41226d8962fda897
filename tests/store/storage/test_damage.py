"""Guarantees 2, 3 and 7: crashes of the process, damage on its disk, and what else happens to folders."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from compactory import Directory, GlobalStore, Index, RocksDB, StoreState
from compactory.errors import BackendFailed, BackendLocked, StoreClosed
from tests.store.ingest.test_rebuild import recreate, values
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]
SHAPES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {}),
    ("found", {"key": "k", "active": "on", "indexes": [Index("n")]}),
)


def directories(name: str) -> list[Directory[Any]]:
    """Two of one topic."""
    return [Directory(shape, topic=name, **options) for shape, options in SHAPES]


def serve(address: str, name: str, path: str) -> None:
    """Run a store that prints a line when it is ready, until it is killed."""
    store = GlobalStore(
        address,
        directories(name),
        backend=RocksDB(path, configure=methodcaller("set_write_buffer_size", 1 << 16)),
    )
    store.start()
    print("ready", dict(store.rebuilds()), flush=True)
    threading.Event().wait()


@contextmanager
def another_process(address: str, name: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a store; killed at the end if it still runs."""
    call = f"from tests.store.storage.test_damage import serve; serve({address!r}, {name!r}, {str(path)!r})"
    process = subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def write(topics: Topics, name: str, chance: random.Random) -> None:
    """Some rows in both partitions: committed, aborted or on their own; bad ones and tombstones among them."""
    partition = chance.randrange(2)
    rows: list[tuple[str, str | None]] = []
    for _ in range(chance.randrange(1, 40)):
        n = chance.randrange(5)
        doc = f'{{"k":"name{chance.randrange(50)}","on":{chance.choice(("true", "false"))},"n":{n}}}'
        rows.append((f"{partition}-{chance.randrange(60)}", chance.choice([doc, doc, doc, None, "["])))
    produce: Callable[..., Any] = chance.choice([topics.produce, topics.commit, topics.abort])
    produce(name, *rows, partition=partition)


def crash(topics: Topics, path: Path, open_store: Opener, chance: random.Random, rounds: int) -> None:
    """Kill a process with a store again and again while it reads; compare what is left with a store in memory."""
    name = topics.create(2)
    for _ in range(rounds):
        with another_process(topics.address, name, path) as process:
            if chance.random() < 0.8:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready {}\n"
            until = time.monotonic() + chance.random()
            while time.monotonic() < until:
                write(topics, name, chance)
        stores = [open_store(*directories(name), backend=backend) for backend in (RocksDB(path), None)]
        for store in stores:
            store.barrier(60)
        disk, memory = stores
        assert not disk.rebuilds()
        for shape, _ in SHAPES:
            assert values(disk, shape) == values(memory, shape)
        places = [sorted((bad.directory, bad.partition, bad.offset) for bad in store.quarantine()) for store in stores]
        assert places[0] == places[1]
        for n in range(5):
            answers = [sorted(str(value) for value in store["found"].find(n=n)) for store in stores]
            assert answers[0] == answers[1]
        for store in stores:
            store.close()


def test_kill_9_and_start_again(topics: Topics, open_store: Opener, tmp_path: Path, seeded: random.Random) -> None:
    """Guarantee 3: whatever moment it is, the next start goes on, reads nothing anew and ends like a fresh store."""
    crash(topics, tmp_path, open_store, seeded, 2)


@pytest.mark.proof
def test_kill_9_many_times(topics: Topics, open_store: Opener, tmp_path: Path, seeded: random.Random) -> None:
    """Guarantee 3: the same, forty times."""
    crash(topics, tmp_path, open_store, seeded, 40)


@pytest.mark.parametrize("damaged", ["MANIFEST", "sst", "pointer", "all"])
def test_damage_found_at_the_start(topics: Topics, open_store: Opener, tmp_path: Path, damaged: str) -> None:
    """Guarantee 3: set aside and read anew, at once or when it is met; the start after that has nothing to do."""
    name = topics.create()
    topics.produce(name, *((f"k{number}", f'{{"n":{number}}}') for number in range(300)))
    open_store(name, backend=RocksDB(tmp_path)).close()
    pattern = {"MANIFEST": "*/*/MANIFEST*", "sst": "*/*/*.sst", "pointer": "*/CURRENT", "all": "*/*/*"}[damaged]
    files = [path for path in tmp_path.glob(pattern) if path.is_file() and path.name != "LOCK"]
    for path in files or [path for path in tmp_path.glob("*/*") if path.is_file()]:
        path.write_bytes(b"\0" * path.stat().st_size)
    store = open_store(name, backend=RocksDB(tmp_path), stall_timeout=60)
    eventually(lambda: len(dict(store[name].items())) == 300, 30)
    assert store.ready
    store.close()
    store = open_store(name, backend=RocksDB(tmp_path))
    assert len(dict(store[name].items())) == 300
    assert not store.rebuilds()


def test_a_folder_has_one_process(topics: Topics, kafka: str, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 3: the second one is told whose it is; a killed one leaves no lock behind."""
    name = topics.create(2)
    with another_process(kafka, name, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        second = GlobalStore(kafka, directories(name), backend=RocksDB(tmp_path))
        with pytest.raises(BackendLocked, match=f"process {process.pid}") as caught:
            second.start()
        assert caught.value.pid == process.pid
        assert second.state is StoreState.FAILED
        second.close()
    assert open_store(*directories(name), backend=RocksDB(tmp_path)).ready


def test_close_while_it_loads(topics: Topics, kafka: str, open_store: Opener, tmp_path: Path) -> None:
    """Guarantees 1 and 3: start is woken; what was read so far is never taken for complete."""
    name = topics.create()
    topics.produce(name, *((f"k{number}", "{}") for number in range(100)))
    with topics.transaction() as producer:
        send(producer, name, [("open", "{}")])
        store = GlobalStore(kafka, [name], backend=RocksDB(tmp_path))
        ended: list[BaseException] = []

        def start() -> None:
            try:
                store.start()
            except StoreClosed as error:
                ended.append(error)

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        eventually(lambda: store.loading().read == 100, 30)
        store.close()
        starting.join(30)
        assert ended
        unreachable = GlobalStore("127.0.0.1:1", [name], backend=RocksDB(tmp_path), start_stale=True, stall_timeout=1)
        with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
            unreachable.start()
        unreachable.close()
        producer.commit_transaction(10)
    assert len(open_store(name, backend=RocksDB(tmp_path))[name]) == 101


def test_the_folder_is_gone_or_none(topics: Topics, kafka: str, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 3: a folder that vanished is made anew; a place that can't be one is named."""
    name, place = topics.create(), tmp_path / "store"
    topics.produce(name, ("a", "{}"))
    open_store(name, backend=RocksDB(place)).close()
    shutil.rmtree(place)
    store = open_store(name, backend=RocksDB(place))
    assert set(store[name]) == {"a"}
    store.close()
    shutil.rmtree(place)
    place.write_text("not a folder")
    store = GlobalStore(kafka, [name], backend=RocksDB(place))
    with pytest.raises(BackendFailed, match=str(place)):
        store.start()
    assert store.state is StoreState.FAILED
    store.close()


def test_read_anew_under_readers(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantees 2 and 5: iterators end on the generation on which they began; then its folder and its space go."""
    name = topics.create()
    topics.produce(name, *((f"old{number:04d}", f'{{"n":0,"pad":"{"x" * 500}"}}') for number in range(2000)))
    store = open_store(Directory(name, indexes=[Index("n")]), backend=RocksDB(tmp_path))
    (former,) = tmp_path.glob("*/0*")
    stop, wrong = threading.Event(), list[object]()

    def look() -> None:
        """Each pass sees one generation whole, or the swap's other side: never a mixture, never an error."""
        while not stop.is_set():
            try:
                kinds = {key[:3] for key in store[name]}
                numbers = {str(row["n"]) for row in store[name].find(n=0)}
                if len(kinds) != 1 or not numbers <= {"0"}:
                    wrong.append(kinds)
            except Exception as error:  # noqa: BLE001 (told at the end)
                wrong.append(error)

    readers = [threading.Thread(target=look, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    under_way = iter(store[name].items())
    pairs = [next(under_way)]
    with topics.transaction() as producer:
        with store._discovery._refreshing:
            recreate(topics, name)
            send(producer, name, [(f"new{number}", '{"n":1}') for number in range(50)])
        eventually(lambda: store.state is StoreState.STALE, 30)
        producer.commit_transaction(10)
    eventually(lambda: store.state is StoreState.READY, 30)
    pairs += list(under_way)
    assert len(pairs) == 2000
    stop.set()
    for reader in readers:
        reader.join(30)
    assert wrong == []
    assert len(store[name].find(n=1)) == 50
    del under_way
    eventually(lambda: not former.exists(), 30)
    assert len(list(tmp_path.glob("*/0*"))) == 1
