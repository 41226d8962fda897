"""One suite for all backends: what the engine and its readers rely on, whatever keeps the entries."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from compactory import Directory, Index, RocksDB
from compactory.codec.packed_record import pack, partition_base
from compactory.storage.backend import Backend, Shelf, Volume
from compactory.storage.memory_backend import Memory
from tests.store.model import Model, Row
from tests.store.table.test_history import SHAPES, compare, random_value
from tests.store.tables import Log, read_to


@pytest.fixture(params=["memory", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Each backend in turn."""
    made: Backend = Memory() if request.param == "memory" else RocksDB(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def volume(backend: Backend) -> Iterator[Volume]:
    """An empty volume that was complete once."""
    opened = backend.open("topic")
    opened.commit(read_to(0))
    yield opened
    opened.close()


def cell(value: str, partition: int = 0, offset: int = 0) -> bytes:
    return value.encode() + pack(partition_base(partition) + offset, 1)


def test_readers_see_what_was_committed(volume: Volume) -> None:
    shelf = volume.shelf("d")
    entries = shelf.mapping("entries")
    entries[b"a"] = cell("1")
    entries.update([(b"b", cell("2", 3)), (b"c", cell("3", 3))])
    assert entries[b"a"] == cell("1")
    assert entries.get(b"x") is None
    assert len(entries) == 3
    volume.commit(read_to(3))
    assert {name: shelf.entries[name] for name in shelf.all_keys()} == dict(entries)
    assert len(shelf.entries) == 3
    assert shelf.sizes() == {0: 1, 3: 2}
    assert b"a" in shelf.entries
    assert b"x" not in shelf.entries
    assert shelf.entries.get(b"x") is None
    with pytest.raises(KeyError):
        shelf.entries[b"x"]


def test_a_key_moves_between_partitions_and_goes(volume: Volume) -> None:
    shelf = volume.shelf("d")
    entries = shelf.mapping("entries")
    for partition in (0, 2, 2, 1):
        entries[b"a"] = cell("v", partition)
        volume.commit(read_to(1))
        assert shelf.sizes() == {partition: 1}
    assert entries.pop(b"a") == cell("v", 1)
    assert entries.pop(b"a", None) is None
    with pytest.raises(KeyError):
        entries.pop(b"a")
    with pytest.raises(KeyError):
        del entries[b"a"]
    volume.commit(read_to(2))
    assert shelf.sizes() == {}
    assert list(shelf.all_keys()) == []
    assert not entries


def test_parts_and_directories_are_apart(volume: Volume) -> None:
    one, two = volume.shelf("d"), volume.shelf("e")
    for shelf in (one, two):
        for part in ("entries", "owners", "graves"):
            shelf.mapping(part)[b"k"] = cell(part)
    two.mapping("graves").pop(b"k")
    volume.commit(read_to(1))
    assert one.mapping("graves")[b"k"] == cell("graves")
    assert not two.mapping("graves")
    assert two.mapping("owners").keys() == {b"k"}
    assert one.mapping("owners") is one.mapping("owners")
    assert volume.shelf("d").mapping("entries")[b"k"] == cell("entries")


def test_order_is_that_of_bytes(volume: Volume, seeded: random.Random) -> None:
    shelf = volume.shelf("d")
    names = {seeded.randbytes(seeded.randrange(5)) for _ in range(2500)} | {b"", b"\xff\xff\xff", b"\0"}
    shelf.mapping("entries").update((name, cell("v")) for name in names)
    shelf.mapping("rivals")[b"\x01"] = cell("another part")
    volume.commit(read_to(1))
    assert list(shelf.range(b"", None)) == sorted(names)
    for _ in range(50):
        start, stop = (seeded.randbytes(seeded.randrange(4)) for _ in range(2))
        assert list(shelf.range(start, stop)) == sorted(name for name in names if start <= name < stop)


def test_pairs_are_keys_and_cells(volume: Volume) -> None:
    """Over several pages; entries that come later are not among them, in memory those that went neither."""
    shelf = volume.shelf("d")
    entries = shelf.mapping("entries")
    model = {b"%05d" % number: cell(f"v{number}") for number in range(2100)}
    entries.update(model.items())
    shelf.mapping("owners").update(model.items())
    volume.commit(read_to(1))
    assert dict(shelf.pairs()) == model
    assert list(shelf.pairs(b"00007", b"00010")) == [(key, model[key]) for key in (b"00007", b"00008", b"00009")]
    assert list(shelf.pairs(b"02098")) == list(model.items())[2098:]
    assert list(shelf.pairs(b"", b"")) == []
    pairs, still = shelf.pairs(), shelf.snapshot().pairs(b"")
    assert next(still)[0] == b"00000"
    next(pairs)
    entries[b"99999"] = cell("later")
    for key in list(model)[1000:]:
        entries.pop(key)
    volume.commit(read_to(2))
    assert {key for key, _ in pairs} | {b"00000"} in (set(model), set(list(model)[:1000]))
    assert len(list(still)) in (2099, 999, 1000)
    assert len(dict(shelf.pairs())) == 1001


def test_postings_under_every_kind_of_term(volume: Volume) -> None:
    shelf = volume.shelf("d")
    postings = shelf.postings("i")
    shelf.postings("other").add("a", b"elsewhere")
    terms: list[Any] = ["", "a", "ab", "é", "1", 1, -1, 0.5, 1e300, 10**30, ("bool", True), ("bool", False)]
    terms += [("a", 1), ("a", "1"), ("a1",), ("bool", ("bool", True)), (("bool", True), "bool")]
    for number, term in enumerate(terms):
        postings.add(term, b"k%d" % number)
        postings.add(term, b"shared")
        postings.add(term, b"shared")
    volume.commit(read_to(1))
    for number, term in enumerate(terms):
        assert sorted(shelf.names("i", term)) == sorted([b"k%d" % number, b"shared"])
    assert set(shelf.terms("i")) == set(terms)
    assert len(list(shelf.terms("i"))) == len(terms)
    assert shelf.names("i", 1.0) == shelf.names("i", 1)
    assert shelf.names("i", "absent") == []
    postings.discard("a", b"shared")
    postings.discard("a", b"never there")
    postings.discard("ab", b"shared")
    postings.discard("ab", b"k2")
    volume.commit(read_to(2))
    assert shelf.names("i", "a") == [b"k1"]
    assert "ab" not in set(shelf.terms("i"))


def test_many_postings_at_once(volume: Volume) -> None:
    shelf = volume.shelf("d")
    names = [b"%05d" % number for number in range(3000)]
    shelf.postings("i").extend(["hot"] * 2000 + [None] * 500 + list(range(500)), names)
    volume.commit(read_to(1))
    assert sorted(shelf.names("i", "hot")) == names[:2000]
    assert shelf.names("i", 7) == [names[2507]]
    assert set(shelf.terms("i")) == {"hot", *range(500)}


def test_random_changes_of_a_part(volume: Volume, seeded: random.Random) -> None:
    """Whatever the writer does, it sees its own changes; readers see the last commit."""
    shelf, model = volume.shelf("d"), dict[bytes, bytes]()
    entries = shelf.mapping("entries")
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
            others = [b"%d" % seeded.randrange(20) for _ in range(2)]
            assert entries.keys().isdisjoint(others) == model.keys().isdisjoint(others)
        elif kind == 4:
            assert (name in entries, entries.get(name), len(entries)) == (name in model, model.get(name), len(model))
            assert bool(entries) == bool(model)
        else:
            assert dict(entries.items()) == model
            volume.commit(read_to(step))
            assert {name: shelf.entries[name] for name in shelf.all_keys()} == model
            assert len(shelf.entries) == len(model) == sum(shelf.sizes().values())


def test_iteration_goes_over_the_keys_of_its_beginning(volume: Volume) -> None:
    shelf = volume.shelf("d")
    entries = shelf.mapping("entries")
    entries.update((b"%04d" % number, cell("v")) for number in range(2500))
    volume.commit(read_to(1))
    keys = shelf.all_keys()
    first = next(keys)
    for number in range(0, 2500, 2):
        entries.pop(b"%04d" % number)
    entries[b"new"] = cell("v")
    volume.commit(read_to(2))
    assert sorted([first, *keys]) == [b"%04d" % number for number in range(2500)]
    assert len(list(shelf.all_keys())) == 1251


def test_a_fresh_volume_is_apart_until_it_is_promoted(backend: Backend) -> None:
    old = backend.open("topic")
    old.shelf("d").mapping("entries")[b"k"] = cell("old")
    old.commit(read_to(1))
    new = backend.fresh("topic")
    assert new.checkpoint is None
    shelf = new.shelf("d")
    assert not shelf.mapping("entries")
    shelf.mapping("entries")[b"k"] = cell("new")
    new.commit(read_to(1))
    assert old.shelf("d").entries[b"k"] == cell("old")
    backend.promote("topic", new)
    backend.promote("topic", new)
    assert old.shelf("d").entries[b"k"] == cell("old")
    assert shelf.entries[b"k"] == cell("new")
    old.close()
    new.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_random_histories(backend: Backend, shape: str, seeded: random.Random) -> None:
    """Guarantees 3, 4 and 5: on every backend the store answers as the model does."""
    directory = Directory("d", **SHAPES[shape])
    for number in range(4):
        log, model = Log(directory, volume=backend.open(f"t{number}")), Model(directory)
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
        log.volume.close()


def test_readers_in_other_threads_never_see_a_gap(volume: Volume, seeded: random.Random) -> None:
    """Guarantee 5: an entry that changes its index value is found under the old or the new one, by every lookup."""
    log = Log(Directory("d", indexes=[Index("f")]), volume=volume)
    log.put("k", b'{"f": 0, "n": 0}')
    stop, wrong = threading.Event(), list[Any]()

    def read() -> None:
        while not stop.is_set():
            newest = log.view["k"]["n"]
            before, found = newest, [doc["n"] for value in (0, 1) for doc in log.view.find(f=value)]
            if any(n < before for n in found):
                wrong.append((before, found))
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


def test_snapshots_stand_still_or_say_so(volume: Volume) -> None:
    """On disk a snapshot is one moment; memory returns the live state."""
    shelf: Shelf = volume.shelf("d")
    entries, postings = shelf.mapping("entries"), shelf.postings("i")
    for number in range(20):
        entries[b"k"] = cell(str(number))
        postings.add(number, b"k")
        if number:
            postings.discard(number - 1, b"k")
        volume.commit(read_to(number))
    still = shelf.snapshot()
    entries.pop(b"k")
    postings.discard(19, b"k")
    volume.commit(read_to(21))
    assert shelf.names("i", 19) == []
    if still is not shelf:
        assert still.names("i", 19) == [b"k"]
        assert still.entries[b"k"] == cell("19")
        assert list(still.terms("i")) == [19]
        assert still.sizes() == {0: 1}
        assert len(still.entries) == 1
        assert list(still.entries) == [b"k"]
        assert still.entries.get(b"x") is None


def test_figures_are_numbers(volume: Volume, backend: Backend) -> None:
    def figures() -> dict[str, float]:
        return {**volume.figures(), **backend.figures()}

    volume.shelf("d").mapping("entries").update((b"%d" % number, cell("v")) for number in range(1000))
    volume.commit(read_to(1))
    volume.flush()
    assert all(value >= 0 for value in figures().values())
    assert figures().get("disk_bytes", 2000) > 1000
    assert figures().get("keys", 1000) == 1000


def test_the_checkpoint_of_an_empty_volume_is_none(backend: Backend) -> None:
    volumes = [backend.open("a"), backend.open("b"), backend.fresh("a")]
    assert [opened.checkpoint for opened in volumes] == [None] * 3
    assert all(one is not other for one, other in pairwise(volumes))
    for opened in volumes:
        opened.close()
