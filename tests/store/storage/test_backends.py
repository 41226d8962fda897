"""Tests that every backend passes: what the engine and its readers need, whatever keeps the entries."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from compactory import Directory, Index, RocksDB
from compactory.codec.packed_record import first_address, pack_origin
from compactory.storage.backend import Backend, DirectoryStorage, TopicStorage
from compactory.storage.memory_backend import Memory
from tests.store.model import Model, Row
from tests.store.table.test_history import SHAPES, compare, random_value
from tests.store.tables import Log, read_to


@pytest.fixture(params=["memory", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Each backend in turn."""
    opened: Backend = Memory() if request.param == "memory" else RocksDB(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def storage(backend: Backend) -> Iterator[TopicStorage]:
    """An empty topic storage that was complete once."""
    opened = backend.open("topic")
    opened.commit(read_to(0))
    yield opened
    opened.close()


def cell(value: str, partition: int = 0, offset: int = 0) -> bytes:
    return value.encode() + pack_origin(first_address(partition) + offset, 1)


def test_readers_see_what_was_committed(storage: TopicStorage) -> None:
    directory_storage = storage.directory_storage("d")
    entries = directory_storage.mapping("entries")
    entries[b"a"] = cell("1")
    entries.update([(b"b", cell("2", 3)), (b"c", cell("3", 3))])
    assert entries[b"a"] == cell("1")
    assert entries.get(b"x") is None
    assert len(entries) == 3
    storage.commit(read_to(3))
    assert {name: directory_storage.entries[name] for name in directory_storage.reading().all_keys()} == dict(entries)
    assert len(directory_storage.entries) == 3
    assert directory_storage.sizes() == {0: 1, 3: 2}
    assert b"a" in directory_storage.entries
    assert b"x" not in directory_storage.entries
    assert directory_storage.entries.get(b"x") is None
    with pytest.raises(KeyError):
        directory_storage.entries[b"x"]


def test_a_key_moves_between_partitions_and_goes(storage: TopicStorage) -> None:
    directory_storage = storage.directory_storage("d")
    entries = directory_storage.mapping("entries")
    for partition in (0, 2, 2, 1):
        entries[b"a"] = cell("v", partition)
        storage.commit(read_to(1))
        assert directory_storage.sizes() == {partition: 1}
    assert entries.pop(b"a") == cell("v", 1)
    assert entries.pop(b"a", None) is None
    with pytest.raises(KeyError):
        entries.pop(b"a")
    with pytest.raises(KeyError):
        del entries[b"a"]
    storage.commit(read_to(2))
    assert directory_storage.sizes() == {}
    assert list(directory_storage.reading().all_keys()) == []
    assert not entries


def test_parts_and_directories_are_apart(storage: TopicStorage) -> None:
    first, second = storage.directory_storage("d"), storage.directory_storage("e")
    for directory_storage in (first, second):
        for part in ("entries", "owners", "tombstones"):
            directory_storage.mapping(part)[b"k"] = cell(part)
    second.mapping("tombstones").pop(b"k")
    storage.commit(read_to(1))
    assert first.mapping("tombstones")[b"k"] == cell("tombstones")
    assert not second.mapping("tombstones")
    assert second.mapping("owners").keys() == {b"k"}
    assert first.mapping("owners") is first.mapping("owners")
    assert storage.directory_storage("d").mapping("entries")[b"k"] == cell("entries")


def test_order_is_that_of_bytes(storage: TopicStorage, seeded: random.Random) -> None:
    directory_storage = storage.directory_storage("d")
    names = {seeded.randbytes(seeded.randrange(5)) for _ in range(2500)} | {b"", b"\xff\xff\xff", b"\0"}
    directory_storage.mapping("entries").update((name, cell("v")) for name in names)
    directory_storage.mapping("candidates")[b"\x01"] = cell("another part")
    storage.commit(read_to(1))
    assert list(directory_storage.reading().range(b"", None)) == sorted(names)
    for _ in range(50):
        start, stop = (seeded.randbytes(seeded.randrange(4)) for _ in range(2))
        assert list(directory_storage.reading().range(start, stop)) == sorted(
            name for name in names if start <= name < stop
        )


def test_pairs_are_keys_and_cells(storage: TopicStorage) -> None:
    """Over several pages; entries that come later are not among them, in memory those that went neither."""
    directory_storage = storage.directory_storage("d")
    entries = directory_storage.mapping("entries")
    model = {b"%05d" % number: cell(f"v{number}") for number in range(2100)}
    entries.update(model.items())
    directory_storage.mapping("owners").update(model.items())
    storage.commit(read_to(1))
    assert dict(directory_storage.reading().pairs()) == model
    assert list(directory_storage.reading().pairs(b"00007", b"00010")) == [
        (key, model[key]) for key in (b"00007", b"00008", b"00009")
    ]
    assert list(directory_storage.reading().pairs(b"02098")) == list(model.items())[2098:]
    assert list(directory_storage.reading().pairs(b"", b"")) == []
    pairs, still = directory_storage.reading().pairs(), directory_storage.reading().pairs(b"")
    assert next(still)[0] == b"00000"
    next(pairs)
    entries[b"99999"] = cell("later")
    for key in list(model)[1000:]:
        entries.pop(key)
    storage.commit(read_to(2))
    assert {key for key, _ in pairs} | {b"00000"} in (set(model), set(list(model)[:1000]))
    assert len(list(still)) in (2099, 999, 1000)
    assert len(dict(directory_storage.reading().pairs())) == 1001


def test_postings_under_every_kind_of_term(storage: TopicStorage) -> None:
    directory_storage = storage.directory_storage("d")
    postings = directory_storage.postings("i")
    directory_storage.postings("other").add("a", b"elsewhere")
    terms: list[Any] = ["", "a", "ab", "é", "1", 1, -1, 0.5, 1e300, 10**30, ("bool", True), ("bool", False)]
    terms += [("a", 1), ("a", "1"), ("a1",), ("bool", ("bool", True)), (("bool", True), "bool")]
    for number, term in enumerate(terms):
        postings.add(term, b"k%d" % number)
        postings.add(term, b"shared")
        postings.add(term, b"shared")
    storage.commit(read_to(1))
    for number, term in enumerate(terms):
        assert sorted(directory_storage.reading().keys_of_term("i", term)) == sorted([b"k%d" % number, b"shared"])
    assert set(directory_storage.reading().terms("i")) == set(terms)
    assert len(list(directory_storage.reading().terms("i"))) == len(terms)
    assert directory_storage.reading().keys_of_term("i", 1.0) == directory_storage.reading().keys_of_term("i", 1)
    assert directory_storage.reading().keys_of_term("i", "absent") == []
    postings.discard("a", b"shared")
    postings.discard("a", b"never there")
    postings.discard("ab", b"shared")
    postings.discard("ab", b"k2")
    storage.commit(read_to(2))
    assert directory_storage.reading().keys_of_term("i", "a") == [b"k1"]
    assert "ab" not in set(directory_storage.reading().terms("i"))


def test_many_postings_at_once(storage: TopicStorage) -> None:
    directory_storage = storage.directory_storage("d")
    names = [b"%05d" % number for number in range(3000)]
    directory_storage.postings("i").extend(["hot"] * 2000 + [None] * 500 + list(range(500)), names)
    storage.commit(read_to(1))
    assert sorted(directory_storage.reading().keys_of_term("i", "hot")) == names[:2000]
    assert directory_storage.reading().keys_of_term("i", 7) == [names[2507]]
    assert set(directory_storage.reading().terms("i")) == {"hot", *range(500)}


def test_random_changes_of_a_part(storage: TopicStorage, seeded: random.Random) -> None:
    """Whatever the writer does, it sees its own changes; readers see the last commit."""
    directory_storage, model = storage.directory_storage("d"), dict[bytes, bytes]()
    entries = directory_storage.mapping("entries")
    for step in range(400):
        name, kind = b"%d" % seeded.randrange(12), seeded.randrange(6)
        if kind == 0:
            assert entries.pop(name, None) == model.pop(name, None)
        elif kind == 1:
            pairs = [(b"%d" % seeded.randrange(12), cell(str(step), seeded.randrange(3))) for _ in range(3)]
            entries.update(pairs)
            model.update(pairs)
        elif kind == 2:
            entries[name] = model[name] = cell(str(step), seeded.randrange(3))
        elif kind == 3:
            sample = [b"%d" % seeded.randrange(20) for _ in range(2)]
            assert entries.keys().isdisjoint(sample) == model.keys().isdisjoint(sample)
        elif kind == 4:
            assert (name in entries, entries.get(name), len(entries)) == (name in model, model.get(name), len(model))
            assert bool(entries) == bool(model)
        else:
            assert dict(entries.items()) == model
            storage.commit(read_to(step))
            assert {name: directory_storage.entries[name] for name in directory_storage.reading().all_keys()} == model
            assert len(directory_storage.entries) == len(model) == sum(directory_storage.sizes().values())


def test_iteration_goes_over_the_keys_of_its_beginning(storage: TopicStorage) -> None:
    directory_storage = storage.directory_storage("d")
    entries = directory_storage.mapping("entries")
    entries.update((b"%04d" % number, cell("v")) for number in range(2500))
    storage.commit(read_to(1))
    keys = directory_storage.reading().all_keys()
    first = next(keys)
    for number in range(0, 2500, 2):
        entries.pop(b"%04d" % number)
    entries[b"new"] = cell("v")
    storage.commit(read_to(2))
    assert sorted([first, *keys]) == [b"%04d" % number for number in range(2500)]
    assert len(list(directory_storage.reading().all_keys())) == 1251


def test_keys_of_a_term_come_in_order_from_where_they_are_asked(storage: TopicStorage) -> None:
    directory_storage = storage.directory_storage("d")
    postings = directory_storage.postings("i")
    names = [b"%04d" % number for number in range(1200)]
    postings.extend(["one", *["many"] * 1200], [b"0007", *reversed(names)])
    storage.commit(read_to(1))
    assert list(directory_storage.reading().keys_of_term_between("i", "many", b"", None)) == names
    assert list(directory_storage.reading().keys_of_term_between("i", "many", b"0100\0", b"0103")) == [b"0101", b"0102"]
    assert list(directory_storage.reading().keys_of_term_between("i", "one", b"", None)) == [b"0007"]
    assert list(directory_storage.reading().keys_of_term_between("i", "none", b"", None)) == []


def test_a_fresh_volume_is_apart_until_it_is_promoted(backend: Backend) -> None:
    old = backend.open("topic")
    old.directory_storage("d").mapping("entries")[b"k"] = cell("old")
    old.commit(read_to(1))
    new = backend.fresh("topic")
    assert new.checkpoint is None
    directory_storage = new.directory_storage("d")
    assert not directory_storage.mapping("entries")
    directory_storage.mapping("entries")[b"k"] = cell("new")
    new.commit(read_to(1))
    assert old.directory_storage("d").entries[b"k"] == cell("old")
    backend.promote("topic", new)
    backend.promote("topic", new)
    assert old.directory_storage("d").entries[b"k"] == cell("old")
    assert directory_storage.entries[b"k"] == cell("new")
    old.close()
    new.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_random_histories(backend: Backend, shape: str, seeded: random.Random) -> None:
    """Guarantees 3, 4 and 5: on every backend the store answers as the model does."""
    directory = Directory("d", **SHAPES[shape])
    for number in range(4):
        log, model = Log(directory, storage=backend.open(f"t{number}")), Model(directory)
        for _ in range(seeded.randrange(4, 16)):
            keys = seeded.choice(["1234", "123456789abcdefghijklmnopqrstuvwxyz"])
            rows = [
                (seeded.choice(keys).encode(), random_value(seeded), seeded.randrange(20))
                for _ in range(seeded.randrange(1, 12))
            ]
            for (key, value, at), offset in zip(rows, log.load(rows), strict=True):
                model.rows.append(Row(key, value, 0, offset, at))
            compare(log.view, model)
        assert log.view.sizes() == {0: len(model.entries())}
        log.storage.close()


def test_readers_in_other_threads_never_see_a_gap(storage: TopicStorage, seeded: random.Random) -> None:
    """Guarantee 5: an entry that changes its index value is found under the old or the new one, by every lookup."""
    log = Log(Directory("d", indexes=[Index("f")]), storage=storage)
    log.put("k", b'{"f": 0, "n": 0}')
    stop, wrong = threading.Event(), list[Any]()

    def read() -> None:
        while not stop.is_set():
            newest = log.view["k"]["n"]
            least, numbers = newest, [doc["n"] for value in (0, 1) for doc in log.view.find(f=value)]
            if any(n < least for n in numbers):
                wrong.append((least, numbers))
            for value in (0, 1):
                wrong.extend(doc for doc in log.view.find(f=value) if doc["f"] != value)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(1, 400):
        log.put("k", b'{"f": %d, "n": %d}' % (seeded.randrange(2), n))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_snapshots_stand_still_or_say_so(storage: TopicStorage) -> None:
    """On disk a snapshot is one moment; memory returns the live state."""
    directory_storage: DirectoryStorage = storage.directory_storage("d")
    entries, postings = directory_storage.mapping("entries"), directory_storage.postings("i")
    for number in range(20):
        entries[b"k"] = cell(str(number))
        postings.add(number, b"k")
        if number:
            postings.discard(number - 1, b"k")
        storage.commit(read_to(number))
    still = directory_storage.reading()
    entries.pop(b"k")
    postings.discard(19, b"k")
    storage.commit(read_to(21))
    assert directory_storage.reading().keys_of_term("i", 19) == []
    if still is not directory_storage:
        assert still.keys_of_term("i", 19) == [b"k"]
        assert still.entries[b"k"] == cell("19")
        assert list(still.terms("i")) == [19]
        assert len(still.entries) == 1
        assert list(still.entries) == [b"k"]
        assert still.entries.get(b"x") is None


def test_figures_are_numbers(storage: TopicStorage, backend: Backend) -> None:
    def figures() -> dict[str, float]:
        return {**storage.figures(), **backend.figures()}

    storage.directory_storage("d").mapping("entries").update((b"%d" % number, cell("v")) for number in range(1000))
    storage.commit(read_to(1))
    storage.flush()
    assert all(value >= 0 for value in figures().values())
    assert figures().get("disk_bytes", 2000) > 1000
    assert figures().get("keys", 1000) == 1000


def test_the_checkpoint_of_an_empty_volume_is_none(backend: Backend) -> None:
    storages = [backend.open("a"), backend.open("b"), backend.fresh("a")]
    assert [opened.checkpoint for opened in storages] == [None] * 3
    assert all(first is not second for first, second in pairwise(storages))
    for opened in storages:
        opened.close()
