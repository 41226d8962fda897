"""Guarantees 2 and 3 for tables in memory that are saved in files."""

from __future__ import annotations

import hashlib
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from compactory import Directory, GlobalStore, Index, StoreState, testing
from compactory.storage import file_saver
from compactory.storage.memory_backend import Memory
from compactory.storage.saved_file import _END, Layout, SavedFile, pack_fields, replace_file
from tests.store.ingest.test_rebuild import values
from tests.store.model import Model, Row
from tests.store.storage.test_rocksdb_crash import SHAPES as CRASH_SHAPES
from tests.store.storage.test_rocksdb_crash import apply, history
from tests.store.table.test_history import SHAPES, compare, random_value
from tests.store.tables import Log, read_to
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]


def file_of(folder: Path) -> Path:
    [path] = folder.glob("*.saved")
    return path


def resumed(directory: Directory[Any], folder: Path, offset: int) -> Log:
    """A table that goes on with what was saved, filled only as far as it is asked."""
    storage = Memory(folder).open("t")
    assert storage.checkpoint is not None
    assert storage.checkpoint.positions == {0: offset}
    log = Log(directory, storage=storage)
    log.table.resume()
    log.view._served.swap(log.table)
    log._next = offset
    return log


@pytest.mark.parametrize("shape", SHAPES)
def test_random_histories_that_go_on_from_a_file(
    shape: str, seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 3: saved while records go on coming; lookups and records meet it filled, half filled and not at all."""
    monkeypatch.setattr(file_saver, "_BUCKET_SIZE", 2)
    (tmp_path / "s").mkdir()
    for _ in range(40):
        directory = Directory("d", **SHAPES[shape])
        log, model = Log(directory), Model(directory)

        def put(log: Log, model: Model) -> None:
            key, value, at = seeded.choice("123456789abc").encode(), random_value(seeded), seeded.randrange(20)
            model.rows.append(Row(key, value, 0, log.put(key, value, at=at), at))

        for _ in range(seeded.randrange(5, 60)):
            put(log, model)
        snapshot, offset, saved_model = log.table.save_snapshot(), log._next, Model(directory)
        saved_model.rows.extend(model.rows)
        for _ in range(seeded.randrange(20)):
            put(log, model)
        path = tmp_path / "s" / file_saver.file_name("t")
        file_saver.save(path, "t", read_to(offset), [snapshot])
        compare(resumed(directory, tmp_path / "s", offset).view, saved_model)
        log = resumed(directory, tmp_path / "s", offset)
        entries = saved_model.entries()
        for _ in range(seeded.randrange(1, 40)):
            put(log, saved_model)
            entries = saved_model.entries()
            for key in ("1", "7", "A", "C", "absent"):
                packed_record = log.table.directory_storage.entries.get(key.encode())
                assert (packed_record and packed_record[:-16]) == entries.get(key)
            assert len(log.view) == len(entries)
        if seeded.random() < 0.5:
            log.table.start_lazy_load(pytest.fail)
            put(log, saved_model)
        compare(log.view, saved_model)
        eventually(lambda log=log: not log.table.is_loading and type(log.table.directory_storage.entries) is dict)


def test_what_is_damaged_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, seeded: random.Random) -> None:
    """Guarantee 2: a file cut off anywhere, with a bit turned over anywhere, of another topic or format."""
    log = Log(Directory("d"))
    for number in range(100):
        log.put(f"k{number}", b"{}")
    path = tmp_path / file_saver.file_name("t")
    file_saver.save(path, "t", read_to(100), [log.table.save_snapshot()])
    whole = path.read_bytes()
    assert Memory(tmp_path).open("t").checkpoint == read_to(100)
    for _ in range(300):
        at = seeded.randrange(len(whole))
        turned = bytes([whole[at] ^ 1 << seeded.randrange(8)])
        for damaged in (whole[:at], whole[:at] + turned + whole[at + 1 :], whole[at + 1 :]):
            path.write_bytes(damaged)
            assert Memory(tmp_path).open("t").checkpoint is None
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="holds topic 't'"):
        SavedFile(path, "another")
    assert len(caplog.messages) == 900


def test_a_file_that_makes_no_sense_is_not_used(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 2: one whose digest is right, as from a foreign hand."""
    name = topics.create()
    topics.produce(name, ("a", "{}"), ("b", "{}"))
    open_store(name, backend=Memory(tmp_path)).close()
    path = file_of(tmp_path)
    saved = SavedFile(path, name)
    log = Log(Directory(name, topic=name))
    log.put("a", b"{}")
    for broken in (b"", b"\xff\xff\xff\xff", pack_fields([b"a"])[:-1]):
        snapshot = log.table.save_snapshot()
        with replace_file(path) as file:
            assert file is not None
            writer = file_saver.SavedFileWriter(file)
            writer._add(broken)
            layout = file_saver._write_directory(writer, snapshot)
            layout = replace(layout, places=writer.places([0, len(broken)] + [10**6] * 10))
            writer.finish(name, saved.checkpoint, {name: layout})
        store = open_store(name, backend=Memory(tmp_path))
        store[name]
        eventually(lambda store=store: store.state is StoreState.READY and set(store[name]) == {"a", "b"})


NONSENSE: dict[str, Callable[[Layout], Layout | None]] = {
    "fewer records": lambda layout: replace(layout, count=layout.count - 1),
    "no buckets": lambda layout: replace(layout, buckets=0),
    "fewer buckets": lambda layout: replace(layout, buckets=layout.buckets - 1),
    "buckets beyond the file": lambda layout: replace(layout, buckets=2**40),
    "a bucket that is none": lambda layout: replace(layout, places=layout.places + 1),
    "places before the file": lambda layout: replace(layout, places=-8),
    "no index": lambda layout: replace(layout, indexes=0),
    "an index more": lambda layout: replace(layout, indexes=2),
    "fewer rows of hashes": lambda layout: replace(layout, rows=layout.rows - 1),
    "hashes elsewhere": lambda layout: replace(layout, keys=layout.places),
    "no lookup keys": lambda layout: replace(layout, names=None),
    "no small parts": lambda layout: replace(layout, parts={}),
    "a small part elsewhere": lambda layout: replace(layout, parts={"tombstones": 5, "quarantine": layout.places}),
    "no directory": lambda layout: None,
}


def test_a_layout_that_makes_no_sense_is_not_used(tmp_path: Path) -> None:
    """Guarantee 2: no lookup of a store that is ready misses a record; the topic is read anew."""
    directory = Directory("d", key="k", indexes=[Index("g")])
    rows = {f"r{number}": {"k": f"K{number}", "g": number % 3} for number in range(300)}
    with testing.store({directory: rows}, backend=Memory(tmp_path)) as store:
        store._reader.run(store._reader._flush, 5)
    path = file_of(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    saved, whole = SavedFile(path, "d"), path.read_bytes()
    layout = saved.directories["d"]._layout
    for case, broken in {"nothing": lambda layout: layout, **NONSENSE}.items():
        with replace_file(path) as file:
            assert file is not None
            writer = file_saver.SavedFileWriter(file)
            writer._add(whole[writer._at : _END.unpack(whole[-_END.size :])[0]])
            changed = broken(layout)
            writer.finish("d", saved.checkpoint, {} if changed is None else {"d": changed})
        store = testing.store({directory: rows}, start=False, backend=Memory(tmp_path))
        with store:
            view = store["d"]
            assert len([key for key in rows if view.get("K" + key[1:]) is not None]) == 300, case
            assert (len(view), len(set(view)), len(view.find(g=1))) == (300, 300, 100), case
            assert store.loading().read == (0 if case == "nothing" else 300), case


def test_a_file_that_cannot_be_filled_in_is_read_anew(tmp_path: Path) -> None:
    """Guarantee 2: what only shows when a bucket is taken over, of which no layout tells."""
    directory = Directory("d", indexes=[Index("g")])
    rows = {f"r{number}": {"g": number % 3} for number in range(300)}
    with testing.store({directory: rows}, backend=Memory(tmp_path)) as store:
        store._reader.run(store._reader._flush, 5)
    whole = file_of(tmp_path).read_bytes()
    with replace_file(file_of(tmp_path)) as file:
        assert file is not None
        digested = whole[: -_END.size].replace(b"[0,1,2,", b"[0,1,x,")
        at, length, _ = _END.unpack(whole[-_END.size :])
        file.write(digested + _END.pack(at, length, hashlib.sha256(digested).digest()))
    with testing.store({directory: rows}, start=False, backend=Memory(tmp_path)) as store:
        eventually(lambda: store.rebuilds() and not store.stale())
        assert store.rebuilds() == {("d", "corrupt"): 1}
        assert len(store["d"].find(g=1)) == 100


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    """The second leaves it to the first; what a killed one has left behind is no hindrance."""
    path = tmp_path / "file"
    (tmp_path / "file.new").write_bytes(b"left behind")
    with replace_file(path) as first, replace_file(path) as second:
        assert second is None
        assert first is not None
        first.write(b"whole")
    assert path.read_bytes() == b"whole"
    with pytest.raises(ZeroDivisionError), replace_file(path) as first:
        1 // 0  # noqa: B018
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def saving_child(folder: str, shape: str, seed: int) -> None:
    """Apply a history and save it again and again, until it is killed."""
    storage = Memory(folder, save_every=1e-9).open("d")
    table = saving_table(shape, storage)
    at = 0 if storage.checkpoint is None else storage.checkpoint.positions[0]
    rows = history(seed)
    print("open", flush=True)
    while True:
        end = min(len(rows), at + 50)
        apply(table, rows, at, end)
        storage.save(read_to(end), lambda: [table.save_snapshot()])
        at = end


def saving_table(shape: str, storage: Any) -> Any:
    directory = Directory("d", **CRASH_SHAPES[shape])
    table = Log(directory, storage=storage).table
    table.multi_partition = shape == "everything"
    if storage.checkpoint is not None:
        table.resume()
    return table


@pytest.mark.parametrize("shape", CRASH_SHAPES)
def test_killed_while_it_writes(shape: str, tmp_path: Path, seeded: random.Random) -> None:
    """Guarantee 3: after kill -9 the file is that of a prefix of the history, whole."""
    seed, saved = seeded.randrange(10**9), 0
    for _ in range(4):
        command = f"from {__name__} import saving_child; saving_child({str(tmp_path)!r}, {shape!r}, {seed})"
        process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        inodes = {path.stat().st_ino for path in tmp_path.glob("*.saved")}
        eventually(lambda inodes=inodes: {path.stat().st_ino for path in tmp_path.glob("*.saved")} - inodes, 30)
        time.sleep(seeded.random() * 0.2)  # a random moment of the writing, which nobody can wait for
        process.kill()
        process.wait()
        process.stdout.close()
        storage = Memory(tmp_path).open("d")
        assert storage.checkpoint is not None
        at = storage.checkpoint.positions[0]
        assert at >= saved
        saved = at
        resumed_table, fresh = saving_table(shape, storage), saving_table(shape, Memory().open("d"))
        apply(fresh, history(seed), 0, at)
        resumed_table.directory_storage.reading()  # takes over all that is in the file
        for part in ("entries", "owners", "candidates", "tombstones"):
            actual, expected = (dict(table.directory_storage.mapping(part)) for table in (resumed_table, fresh))
            assert actual == expected, part
        assert resumed_table.quarantine.bad_topic_keys() == fresh.quarantine.bad_topic_keys()
        for index in resumed_table.indexes:
            actual, expected = (table.directory_storage.reading() for table in (resumed_table, fresh))
            assert {term: set(actual.keys_of_term(index, term)) for term in actual.terms(index)} == {
                term: set(expected.keys_of_term(index, term)) for term in expected.terms(index)
            }


def test_a_restart_reads_only_what_is_new(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantee 3: the log before the file's positions is gone, and is not missed."""
    name = topics.create(cleanup_policy="delete")
    directory = Directory(name, key="k", active="on", indexes=[Index("g")])
    rows = [(f"{n}", orjson.dumps({"k": f"K{n}", "on": n % 7 > 0, "g": n % 3})) for n in range(500)]
    topics.produce(name, *rows)
    first = open_store(directory, backend=Memory(tmp_path))
    values_before = values(first, name)
    first.close()
    topics.cut(name, 400)
    topics.produce(name, ("1", None), ("2", b'{"k":"K3","on":true,"g":5}'), ("new", b'{"k":"N","on":true,"g":1}'))
    store = open_store(directory, backend=Memory(tmp_path))
    expected = {key: value for key, value in values_before.items() if key not in ("K1", "K2")}
    expected |= {"N": {"k": "N", "on": True, "g": 1}, "K3": {"k": "K3", "on": True, "g": 5}}
    assert store[name].get("K499") == expected["K499"]
    assert values(store, name) == expected
    assert [value["k"] for value in store[name].find(g=5)] == ["K3"]
    assert not store.rebuilds()
    assert store.loading().read == 3


def test_saving_goes_on_while_the_store_runs(topics: Topics, open_store: Opener, tmp_path: Path) -> None:
    """Guarantees 3 and 5: a file follows the next; a folder that is gone ends nothing."""
    name = topics.create()
    topics.produce(name, *((f"{n}", b'{"v":0}') for n in range(3000)))
    store = open_store(name, backend=Memory(tmp_path, save_every=0.01))
    store._reader.run(store._reader._flush, 5)
    eventually(lambda: list(tmp_path.glob("*.saved")))
    store._reader._flushed = float("-inf")
    topics.produce(name, *((f"{n}", b'{"v":1}') for n in range(3000)))
    store.barrier()
    inode = file_of(tmp_path).stat().st_ino
    store._reader.run(store._reader._flush, 5)
    eventually(lambda: file_of(tmp_path).stat().st_ino != inode)

    def all_saved() -> bool:
        store._reader.run(store._reader._flush, 5)
        checkpoint = Memory(tmp_path).open(name).checkpoint
        return checkpoint is not None and checkpoint.positions == {0: 6000}

    eventually(all_saved)
    tmp_path.rename(f"{tmp_path}.away")
    topics.produce(name, ("x", b"{}"))
    store.barrier()
    store._reader.run(store._reader._flush, 5)
    assert store.live
    assert store[name]["x"] == {}


def test_start_stale_from_a_file(topics: Topics, kafka: str, tmp_path: Path) -> None:
    """Guarantee 7: a store in memory starts without Kafka too."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    with GlobalStore(kafka, [name], backend=Memory(tmp_path)):
        pass
    with GlobalStore("localhost:1", [name], backend=Memory(tmp_path), start_stale=True) as store:
        assert store.state is StoreState.STALE
        assert set(store[name]) == {"a"}


def test_readers_while_it_is_filled(tmp_path: Path) -> None:
    """Guarantee 5: threads that look up, count and iterate see all of it at any moment, and end when it is closed."""
    log = Log(Directory("d"))
    log.load([(b"%d" % n, b'{"n":%d}' % n, 1) for n in range(20_000)])
    file_saver.save(tmp_path / file_saver.file_name("t"), "t", read_to(20_000), [log.table.save_snapshot()])
    log = resumed(Directory("d"), tmp_path, 20_000)
    wrong: list[Any] = []

    def look(start: int) -> None:
        answers = ((n, log.view.get(str(n)), len(log.view)) for n in range(start, 20_000, 7))
        wrong.extend(answer for answer in answers if answer[1:] != ({"n": answer[0]}, 20_000))

    threads = [threading.Thread(target=look, args=[start]) for start in range(4)]
    for thread in threads:
        thread.start()
    log.table.start_lazy_load(pytest.fail)
    for n in range(0, 20_000, 50):
        log.put(str(n), b'{"n":%d}' % n)
    for thread in threads:
        thread.join()
    assert not wrong
    log = resumed(Directory("d"), tmp_path, 20_000)
    log.table.start_lazy_load(pytest.fail)
    log.storage.close()
    assert not log.table.directory_storage.entries.get(b"1") or True
