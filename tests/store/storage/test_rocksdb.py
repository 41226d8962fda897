"""RocksDB: what a restart finds, what is done about damage, who may use a folder, what may be set."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from compactory import BackendFailed, ConfigError, Directory, Index, RocksDB
from compactory.errors import BackendCorrupt, BackendLocked, StoreClosed
from compactory.storage.backend import DirectoryStorage
from compactory.storage.checkpoint import CaughtUp, Checkpoint
from compactory.storage.rocksdb.database import DAMAGED, RocksDatabase, failure_of
from compactory.storage.rocksdb.folder import TopicFolder, remove
from compactory.storage.rocksdb.key_filter import KeyFilter
from compactory.storage.rocksdb.keys import MAX_PARTS, after, term_of, term_prefix
from compactory.storage.rocksdb.topic_storage import FORMAT, RocksTopicStorage
from tests.forks import forked
from tests.store.storage.test_backends import cell
from tests.store.tables import Log, read_to
from tests.store.topics import eventually

Open = Callable[[], RocksTopicStorage]


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Open]:
    """Closes what it gave before, and opens the topic as after a restart."""
    opened: list[tuple[RocksDB, RocksTopicStorage]] = []

    def leave() -> None:
        for backend, storage in opened:
            storage.close()
            backend.close()
        opened.clear()

    def again() -> RocksTopicStorage:
        leave()
        backend = RocksDB(tmp_path)
        storage = backend.open("topic")
        opened.append((backend, storage))
        return storage

    yield again
    leave()


def fill(storage: RocksTopicStorage, number: int = 100, upto: int = 1) -> None:
    directory_storage = storage.directory_storage("d")
    directory_storage.mapping("entries").update((b"%06d" % n, cell(f"v{n}", n % 3, n)) for n in range(number))
    directory_storage.postings("i").extend([n % 7 for n in range(number)], [b"%06d" % n for n in range(number)])
    storage.commit(read_to(upto))


def folder_of(path: Path) -> Path:
    (folder,) = (child for child in path.iterdir() if child.is_dir())
    return folder


def generations(path: Path) -> list[str]:
    return sorted(folder.name for folder in folder_of(path).iterdir() if folder.name != "CURRENT")


def test_a_restart_finds_everything(reopen: Open) -> None:
    """Guarantee 3: entries, counts, indexes and positions."""
    storage = reopen()
    assert storage.checkpoint is None
    fill(storage)
    checkpoint = Checkpoint(
        topic_id="id", cluster_id=None, definition="x", positions={0: 7, 3: 9},
        caught_up={3: CaughtUp(at=1.5, end=9)}, complete=True,
    )  # fmt: skip
    storage.commit(checkpoint)
    storage = reopen()
    assert storage.checkpoint == checkpoint
    directory_storage = storage.directory_storage("d")
    assert directory_storage.sizes() == {0: 34, 1: 33, 2: 33}
    assert list(directory_storage.reading().all_keys()) == [b"%06d" % n for n in range(100)]
    assert directory_storage.reading().keys_of_term("i", 3) == [b"%06d" % n for n in range(100) if n % 7 == 3]
    directory_storage.mapping("entries").pop(b"000001")
    storage.commit(read_to(8))
    assert reopen().directory_storage("d").sizes() == {0: 34, 1: 32, 2: 33}


def test_what_was_flushed_outlives_the_process(tmp_path: Path) -> None:
    """Guarantee 3: nothing is closed, the process just ends."""
    script = (
        "import os; from compactory import RocksDB\n"
        "from tests.store.tables import read_to; from tests.store.storage.test_rocksdb import fill\n"
        f"volume = RocksDB({str(tmp_path)!r}).open('topic')\n"
        "fill(volume, 50, upto=50); volume.flush(); fill(volume, 80, upto=80); os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    assert storage.checkpoint == read_to(50)
    assert len(storage.directory_storage("d").entries) == 50
    storage.close()
    backend.close()


def test_a_load_in_bulk_reads_its_own_changes(reopen: Open) -> None:
    """Over several of the chunks that it writes, with keys that come again and go."""
    storage = reopen()
    entries = storage.directory_storage("d").mapping("entries")
    for start in range(0, 140_000, 2000):
        names = [b"%08d" % (n * 7919 % 140_000) for n in range(start, start + 2000)]
        assert entries.keys().isdisjoint(names)
        entries.update((name, cell("v", 1)) for name in names)
        if start % 20_000 == 0:
            assert entries[names[5]] == cell("v", 1)
            assert entries.pop(b"%08d" % 0, None) == (cell("v", 1) if start == 0 else None)
            entries[b"%08d" % 7919] = cell("again", 2)
            assert not entries.keys().isdisjoint([b"%08d" % 7919])
        storage.commit(read_to(start, complete=False))
    bulk = storage.database.bulk
    assert len(entries) == 139_999
    storage.commit(read_to(1))
    assert (bulk, storage.database.bulk) == (True, False)
    directory_storage = storage.directory_storage("d")
    assert directory_storage.sizes() == {1: 139_998, 2: 1}
    assert sum(1 for _ in directory_storage.reading().all_keys()) == 139_999
    assert directory_storage.entries[b"%08d" % 7919] == cell("again", 2)


def test_an_unfinished_load_goes_on_from_its_last_flush(reopen: Open) -> None:
    storage = reopen()
    storage.directory_storage("d").mapping("entries")[b"a"] = cell("1")
    storage.commit(read_to(1, complete=False))
    storage.flush()
    storage = reopen()
    assert storage.checkpoint == read_to(1, complete=False)
    storage.directory_storage("d").mapping("entries")[b"b"] = cell("2")
    storage.commit(read_to(2))
    assert len(reopen().directory_storage("d").entries) == 2


def test_idle_flushes_write_no_files(reopen: Open) -> None:
    """A mark of when the end was reached waits for up to a minute; closing writes it."""
    storage = reopen()
    fill(storage)
    storage.flush()
    disk_bytes = storage.figures()["disk_bytes"]
    for second in range(5):
        newest = Checkpoint(
            topic_id="t", cluster_id="c", definition="d", positions={0: 1},
            caught_up={0: CaughtUp(at=float(second), end=1)}, complete=True,
        )  # fmt: skip
        storage.commit(newest)
        storage.flush()
    assert storage.figures()["disk_bytes"] == disk_bytes
    assert reopen().checkpoint == newest


def test_a_promoted_generation_replaces_the_former(tmp_path: Path) -> None:
    """Guarantee 2: whoever reads the former one may finish; then it goes."""
    backend = RocksDB(tmp_path)
    old = backend.open("topic")
    fill(old, 1500)
    directory_storage = old.directory_storage("d")
    keys = directory_storage.reading().all_keys()
    assert next(keys) == b"000000"
    new = backend.fresh("topic")
    fill(new, 5)
    assert generations(tmp_path) == ["000001", "000002"]
    backend.promote("topic", new)
    del old
    gc.collect()
    assert generations(tmp_path) == ["000001", "000002"]
    assert directory_storage.entries[b"000007"] == cell("v7", 1, 7)
    assert len(list(keys)) == 1499
    del directory_storage, keys
    gc.collect()
    eventually(lambda: generations(tmp_path) == ["000002"])
    new.close()
    backend.close()
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    assert len(storage.directory_storage("d").entries) == 5
    storage.close()
    backend.close()


def test_a_folder_goes_while_files_are_written_into_it(tmp_path: Path) -> None:
    """As RocksDB does where an iterator ends after its database."""
    folder = tmp_path / "000001"
    folder.mkdir()
    for number in range(3000):
        (folder / f"{number}.sst").touch()

    def write() -> None:
        """Write files from the first removal on, and for a moment longer."""
        eventually(lambda: not (folder / "0.sst").exists() or not (folder / "2999.sst").exists())
        for number in range(100):
            with contextlib.suppress(FileNotFoundError):
                (folder / f"MANIFEST-{number}").touch()

    writer = threading.Thread(target=write)
    writer.start()
    remove(folder)
    writer.join()
    assert not folder.exists()


def test_what_was_not_promoted_goes(tmp_path: Path) -> None:
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    fill(storage)
    backend.fresh("topic").close()
    assert generations(tmp_path) == ["000001"]
    unpromoted = backend.fresh("topic")  # as a process leaves it that dies while it reads anew
    unpromoted.is_kept = True
    for opened in (unpromoted, storage):
        opened.close()
    backend.close()
    assert generations(tmp_path) == ["000001", "000002"]
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    assert generations(tmp_path) == ["000001"]
    assert len(storage.directory_storage("d").entries) == 100
    storage.close()
    backend.close()


def test_close_ends_iterators_and_lookups(tmp_path: Path) -> None:
    """A reader that nobody finished must not keep the next store from the folder."""
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    fill(storage, 2500)
    directory_storage = storage.directory_storage("d")
    keys, still = directory_storage.reading().all_keys(), directory_storage.reading()
    next(keys)
    storage.close()
    storage.close()
    backend.close()
    for read in (
        lambda: list(keys),
        lambda: still.entries[b"1"],
        lambda: directory_storage.entries[b"1"],
        directory_storage.reading,
    ):
        with pytest.raises(StoreClosed):
            read()
    backend = RocksDB(tmp_path)
    backend.open("topic").close()
    backend.close()


def read_on(directory_storage: DirectoryStorage, errors: list[BaseException]) -> None:
    try:
        while True:
            assert len(directory_storage.entries[b"000007"]) > 16
            assert len(directory_storage.reading().keys_of_term("i", 3)) == 71
            assert len(list(directory_storage.reading().all_keys())) == 500
    except Exception as error:  # noqa: BLE001 (which one is what is tested)
        errors.append(error)


def test_lookups_while_it_is_closed(tmp_path: Path) -> None:
    """Reads return an answer or raise StoreClosed."""
    for _ in range(5):
        backend = RocksDB(tmp_path)
        storage = backend.open("topic")
        fill(storage, 500)
        directory_storage, errors = storage.directory_storage("d"), list[BaseException]()
        threads = [threading.Thread(target=read_on, args=(directory_storage, errors)) for _ in range(3)]
        for thread in threads:
            thread.start()
        storage.close()
        assert storage.figures() == {}
        backend.close()
        for thread in threads:
            thread.join(30)
        assert [type(error) for error in errors] == [StoreClosed] * 3, errors


def damage_file(pattern: str, damage_one: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(generation: Path) -> None:
        files = sorted(generation.glob(pattern))
        assert files
        for file in files:
            damage_one(file)

    return damage


def scribble(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for place in range(0, len(data), 40):
        data[place] ^= 0xFF
    file.write_bytes(data)


def cut_in_half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "manifest scribbled": damage_file("MANIFEST-*", scribble),
    "manifest gone": damage_file("MANIFEST-*", Path.unlink),
    "manifest cut": damage_file("MANIFEST-*", cut_in_half),
    "current is garbage": damage_file("CURRENT", lambda file: file.write_text("garbage")),
    "current is empty": damage_file("CURRENT", lambda file: file.write_text("")),
    "table scribbled": damage_file("*.sst", scribble),
    "table gone": damage_file("*.sst", Path.unlink),
    "table cut": damage_file("*.sst", cut_in_half),
    "marked": lambda generation: (generation / DAMAGED).touch(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_set_aside(tmp_path: Path, reopen: Open, damage: str, caplog: Any) -> None:
    """Guarantee 3: never a crash loop. The store gets an empty topic storage, and reads anew."""
    for round_ in range(2):
        fill(reopen(), 5000)
        reopen().close()
        current = (folder_of(tmp_path) / "CURRENT").read_text().strip()
        DAMAGES[damage](folder_of(tmp_path) / current)
        storage = reopen()
        if storage.checkpoint is not None:  # a table that is only met when it is read
            assert "table" in damage
            with pytest.raises(BackendCorrupt):
                assert (
                    len(
                        [
                            storage.directory_storage("d").entries[key]
                            for key in storage.directory_storage("d").reading().all_keys()
                        ]
                    )
                    == 5000
                )
            with pytest.raises(BackendCorrupt):
                storage.commit(read_to(9))
            with pytest.raises(BackendCorrupt):
                storage.flush()
            storage = reopen()
        assert storage.checkpoint is None
        assert not storage.directory_storage("d").mapping("entries")
        aside = [name for name in generations(tmp_path) if name.startswith("damaged-")]
        assert len(aside) == 1, round_
        assert "set aside" in caplog.text
        storage.commit(read_to(0))


def test_another_format_or_topic_is_set_aside(tmp_path: Path, reopen: Open) -> None:
    """A newer version's folder is not read wrongly."""
    for change in ({"format": FORMAT + 1}, {"topic": "other"}, {"checkpoint": {"what": 1}}):
        storage = reopen()
        fill(storage)
        database = storage.database
        state = json.loads(database.read(b"\0\0") or b"")
        batch = database.batch()
        batch.put(b"\0\0", json.dumps({**state, **change}).encode())
        database.write(batch)
        assert reopen().checkpoint is None
        assert any(name.startswith("damaged-") for name in generations(tmp_path))


def test_a_rebuild_after_damage_sets_aside_instead_of_removing(tmp_path: Path) -> None:
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    fill(storage, 3000)
    storage.flush()
    storage.database.failed(Exception("Corruption: block checksum mismatch"))
    with pytest.raises(BackendCorrupt):
        storage.commit(read_to(3))
    new = backend.fresh("topic")
    fill(new, 3)
    backend.promote("topic", new)
    storage.close()
    del storage
    gc.collect()
    eventually(lambda: [name[:8] for name in generations(tmp_path)] == ["000002", "damaged-"])  # by a thread
    new.close()
    backend.close()


@pytest.mark.parametrize("pointer", ["", "x", "999", "-1", "²"])
def test_a_pointer_that_points_nowhere(tmp_path: Path, reopen: Open, pointer: str) -> None:
    fill(reopen())
    (folder_of(tmp_path) / "CURRENT").write_text(pointer, encoding="utf-8")
    assert reopen().checkpoint is None


def test_a_pointer_that_can_not_be_read_now(tmp_path: Path, reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 3: too many open files are no reason to remove what is there."""
    storage = reopen()
    fill(storage)
    storage.flush()

    def refused(*_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    folder = TopicFolder(tmp_path, "topic")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refused)
        with pytest.raises(BackendFailed, match="Too many open files"):
            folder.current()
    assert len(reopen().directory_storage("d").entries) == 100


def test_the_folder_is_given_back_whatever_a_former_generation_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RocksDB(tmp_path)
    former, new = backend.open("topic"), backend.fresh("topic")
    backend.promote("topic", new)

    def refused() -> None:
        raise BackendFailed("the disk is full", "")

    monkeypatch.setattr(former.database, "close", refused)
    new.close()
    backend.close()
    second = RocksDB(tmp_path)
    second.open("topic").close()
    second.close()


def test_a_second_store_is_refused_by_name(tmp_path: Path) -> None:
    backend = RocksDB(tmp_path)
    backend.open("topic").close()
    with pytest.raises(BackendLocked, match="another store of this process") as refused:
        RocksDB(tmp_path).open("other")
    assert str(tmp_path) in str(refused.value)
    script = f"from compactory import RocksDB; RocksDB({str(tmp_path)!r}).open('topic')"
    run = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert f"BackendLocked: {tmp_path} is used by process {os.getpid()}; stop that" in run.stderr
    backend.close()
    second = RocksDB(tmp_path)
    second.open("topic").close()
    second.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_leaves_the_parent_alone(tmp_path: Path) -> None:
    """The child's copy neither writes into the folder, nor hangs, nor keeps the lock when the parent is gone."""
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    fill(storage)
    storage.flush()
    fill(storage, 200, upto=2)  # not flushed: a child that closed its copy would do so

    def child() -> None:
        nonlocal backend, storage
        del backend, storage
        gc.collect()

    forked(child)
    with pytest.raises(BackendLocked):
        RocksDB(tmp_path).open("topic")
    assert len(storage.directory_storage("d").entries) == 200
    storage.close()
    backend.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may do everything")
def test_a_folder_without_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BackendFailed, match="needs to read and write this folder"):
        RocksDB(tmp_path / "store").open("topic")
    tmp_path.chmod(0o700)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(BackendFailed, match="store"):
        RocksDB(tmp_path / "store").open("topic")


@pytest.mark.parametrize(
    ("text", "kind", "remedy"),
    [
        ("IO error: No space left on device: While appending to file", BackendFailed, "free space"),
        ("IO error: While mkdir: Read-only file system", BackendFailed, "read and write"),
        ("IO error: Permission denied: While opening", BackendFailed, "read and write"),
        ("IO error: lock hold by current process, acquire time", BackendLocked, "folder of its own"),
        ("Corruption: block checksum mismatch", BackendCorrupt, "damaged"),
        ("IO error: No such file or directory: While open a file: 000012.sst", BackendCorrupt, "damaged"),
        ("Busy: something", BackendFailed, "RocksDB failed"),
    ],
)
def test_errors_of_the_library_are_ours(text: str, kind: type[BackendFailed], remedy: str) -> None:
    failure = failure_of(Exception(text), Path("/f"))
    assert type(failure).__mro__[:3].count(kind) == 1
    assert remedy in str(failure)
    assert failure.path == "/f"  # type: ignore[attr-defined]


def test_a_full_disk_ends_the_volume_not_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write that fails is not visible, later ones are refused, what was flushed is there after a restart."""
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    fill(storage, 10)
    storage.flush()

    def full(_self: RocksDatabase, _batch: Any) -> None:
        raise failure_of(Exception("IO error: No space left on device"), tmp_path)

    with monkeypatch.context() as patched:
        patched.setattr(RocksDatabase, "write", full)
        with pytest.raises(BackendFailed, match="disk is full"):
            fill(storage, 20, upto=2)
    with pytest.raises(BackendFailed, match="disk is full"):
        storage.commit(read_to(3))
    assert len(storage.directory_storage("d").entries[b"000001"]) > 16
    storage.close()
    backend.close()
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    assert (storage.checkpoint, len(storage.directory_storage("d").entries)) == (read_to(1), 10)
    storage.close()
    backend.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": ""}, "path is empty"),
        ({"compression": "zip"}, "compression must be one of none, lz4"),
        ({"block_cache_bytes": -1}, "block_cache_bytes must be"),
        ({"memtable_bytes": True}, "memtable_bytes must be"),
        ({"configure": 1}, "configure must be a function"),
    ],
)
def test_bad_settings_are_refused_at_once(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RocksDB(**{"path": tmp_path / "store", **options})
    assert not (tmp_path / "store").exists()


def test_options_are_configured(tmp_path: Path) -> None:
    """Also in a folder that was made with others: RocksDB keeps its options beside the data."""
    for number, size in enumerate((1 << 21, 1 << 20)):
        configure = methodcaller("set_write_buffer_size", size)
        backend = RocksDB(tmp_path, compression="zstd", configure=configure)
        storage = backend.open("topic")
        fill(storage, 1000 * (number + 1))
        assert len(list(storage.directory_storage("d").reading().all_keys())) == 1000 * (number + 1)
        written = max(storage.database.path.glob("OPTIONS-*")).read_text()
        assert f"write_buffer_size={size}" in written
        storage.close()
        backend.close()


def test_options_that_rocksdb_refuses_lose_nothing(tmp_path: Path) -> None:
    """An option that RocksDB refuses at opening is no damage."""
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    fill(storage)
    storage.close()
    backend.close()

    def refuse(options: Any) -> None:
        options.set_unordered_write(True)
        options.set_enable_pipelined_write(True)

    refused = RocksDB(tmp_path, configure=refuse)
    with pytest.raises(ConfigError, match="RocksDB refuses its options"):
        refused.open("topic")
    refused.close()
    assert generations(tmp_path) == ["000001"]
    backend = RocksDB(tmp_path)
    storage = backend.open("topic")
    assert len(storage.directory_storage("d").entries) == 100
    storage.close()
    backend.close()


def test_without_the_package_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigError, match=r"pip install 'compactory\[rocksdb\] @ URL'"):
        RocksDB(tmp_path)


def test_nothing_is_opened_before_the_start(tmp_path: Path) -> None:
    RocksDB(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_topics_whose_names_a_file_system_may_mix_up(tmp_path: Path) -> None:
    backend = RocksDB(tmp_path)
    names = ["T", "t", "t.t", "t_t", "x" * 249, "x" * 248 + "y"]
    storages = [backend.open(name) for name in names]
    for number, storage in enumerate(storages):
        fill(storage, number + 1)
    assert len({folder.name.lower() for folder in tmp_path.iterdir() if folder.is_dir()}) == len(names)
    for storage in storages:
        storage.close()
    backend.close()


def test_a_table_over_restarts(reopen: Open) -> None:
    """The engine on top: a restarted table goes on where it was."""
    directory = Directory("d", key="id", active="on", indexes=[Index("f", unique=True)])
    log = Log(directory, storage=reopen())
    for number in range(30):
        log.put(f"r{number}", b'{"id": "%d", "f": %d, "on": true}' % (number % 10, number % 3))
    entries = dict(log.view.items())
    log = Log(directory, storage=reopen())
    assert dict(log.view.items()) == entries
    assert len(log.view) == 10
    log.put("r29", None, at=2)
    assert log.view["9"]["f"] == 19 % 3
    assert log.view.find(f=29 % 3) == [] or log.view.find(f=29 % 3)[0]["id"] != "9"


def test_terms_round_trip() -> None:
    for term in [
        "",
        "a\0b",
        "\ud800",
        0,
        -255,
        2**70,
        10**5000,
        1.5,
        -0.25,
        1e-300,
        ("bool", True),
        ("a", ("bool", False), 3),
    ]:
        assert term_of(term_prefix(term)) == term
    assert term_prefix(1.0) == term_prefix(1)
    assert term_prefix(1e22) == term_prefix(10**22)
    assert term_prefix(True) != term_prefix(1)
    assert term_prefix("1") != term_prefix(1)
    assert after(b"\x00\x01") == b"\x00\x02"
    assert after(b"\x00\xff") == b"\x01"
    assert MAX_PARTS == 65534


@pytest.mark.parametrize("exact", [10**6, 0], ids=["names", "filter"])
def test_a_key_filter_forgets_no_key(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{KeyFilter.__module__}._EXACT", exact)
    key_filter, names = KeyFilter(), [b"%d" % n for n in range(5000)]
    assert key_filter.possible(b"p", names) == []
    assert key_filter.add(b"p", names) == []
    assert key_filter.possible(b"p", names) == names
    assert len(key_filter.possible(b"q", names)) < 100
    assert len(key_filter.possible(b"p", [b"x%d" % n for n in range(5000)])) < 100
    assert key_filter.add(b"p", names[:1]) == names[:1]
    assert key_filter.add(b"p", []) == []
    assert key_filter.possible(b"p", []) == []


def test_a_key_filter_forgets_no_key_when_it_gives_up_its_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{KeyFilter.__module__}._EXACT", 100)
    key_filter = KeyFilter()
    for start in range(0, 1000, 50):
        names = [b"%d" % n for n in range(start, start + 50)]
        assert set(key_filter.add(b"p", [*names, b"0"])) >= ({b"0"} if start else set())
    assert len(key_filter.possible(b"p", [b"%d" % n for n in range(1000)])) == 1000
