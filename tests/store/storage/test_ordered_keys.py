"""Keys in order: prefixes, ranges and pages while the directory changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from compactory import Directory, Index
from compactory.errors import NotReady
from compactory.read.served import Served
from compactory.storage.dict_snapshot import WrittenDict
from compactory.storage.memory_directory import MemoryDirectoryStorage, MemoryPostings
from compactory.storage.ordered_keys import OrderedKeys
from tests.store.tables import Log


def test_against_a_sorted_set(seeded: random.Random) -> None:
    keys = {b"%06d" % seeded.randrange(10**6) for _ in range(5000)}
    ordered, model = OrderedKeys(), set(keys)
    ordered.build(keys)
    for _ in range(4000):
        key = b"%06d" % seeded.randrange(10**6) if seeded.random() < 0.5 else seeded.choice(sorted(model)[:2000])
        if seeded.random() < 0.5:
            ordered.add(key)
            model.add(key)
        else:
            ordered.discard(key)
            model.discard(key)
    assert list(ordered.range(b"", None)) == sorted(model)
    for _ in range(200):
        lo, hi = (b"%06d" % seeded.randrange(10**6) for _ in range(2))
        assert list(ordered.range(lo, hi)) == sorted(key for key in model if lo <= key < hi)


def test_blocks_split_and_vanish() -> None:
    ordered = OrderedKeys()
    ordered.build([])
    keys = [b"%05d" % number for number in range(3000)]
    for key in keys:
        ordered.add(key)
        ordered.add(key)
    assert list(ordered.range(b"", None)) == keys
    for key in keys:
        ordered.discard(key)
        ordered.discard(key)
    assert list(ordered.range(b"", None)) == []
    ordered.add(b"again")
    assert list(ordered.range(b"", None)) == [b"again"]


def test_changes_while_it_is_built_count() -> None:
    ordered = OrderedKeys()
    ordered.add(b"new")
    ordered.discard(b"gone")
    ordered.build([b"a", b"gone"])
    assert list(ordered.range(b"", None)) == [b"a", b"new"]


def test_a_range_is_what_it_was_when_it_began() -> None:
    ordered = OrderedKeys()
    ordered.build([b"%04d" % number for number in range(2000)])
    going = ordered.range(b"", None)
    first = list(islice(going, 700))
    for number in range(2000):
        ordered.discard(b"%04d" % number)
    assert first + list(going) == [b"%04d" % number for number in range(2000)]


@pytest.fixture
def log() -> Log:
    log = Log(Directory("d", decode=str))
    for key in ("a", "ab", "abc", "b", "é", "éa", "\U0010ffff"):
        log.put(key, key.upper())
    return log


def test_prefix_and_range(log: Log) -> None:
    view = log.view
    assert list(view.prefix("ab")) == [("ab", "AB"), ("abc", "ABC")]
    assert [key for key, _ in view.prefix("é")] == ["é", "éa"]
    assert [key for key, _ in view.prefix("\U0010ffff")] == ["\U0010ffff"]
    assert [key for key, _ in view.prefix("")] == sorted(view)
    assert [key for key, _ in view.prefix("zzz")] == []
    assert [key for key, _ in view.range("ab", "é")] == ["ab", "abc", "b"]
    assert [key for key, _ in view.range("b")] == ["b", "é", "éa", "\U0010ffff"]
    assert [key for key, _ in view.range("x", "a")] == []
    log.put("abb", "ABB")
    log.delete("abc")
    log.put("ab", "again")
    assert list(view.prefix("ab")) == [("ab", "again"), ("abb", "ABB")]


def test_pages_by_key(log: Log) -> None:
    keys: list[str] = []
    last_key: str | None = None
    while page := list(islice(log.view.keys_from(last_key), 2)):
        keys += page
        last_key = page[-1]
    assert keys == sorted(log.view)
    assert list(log.view.keys_from("ab", prefix="a")) == ["abc"]
    assert list(log.view.keys_from("a", prefix="é")) == ["é", "éa"]


def test_what_is_there_all_the_time_is_always_found(seeded: random.Random) -> None:
    """Guarantee 5: readers build and use the order while the writer changes keys."""
    log = Log(Directory("d", decode=str))
    stays = [f"s{number:03d}" for number in range(300)]
    for key in stays:
        log.put(key, "1")
    ending = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not ending.is_set():
            keys = [key for key, _ in log.view.prefix("s") if len(key) == 4]
            if keys != stays:
                wrong.append(f"{len(keys)} of {len(stays)}")
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(6000):
        key = f"s{seeded.randrange(300):03d}x{seeded.randrange(5)}"
        if seeded.random() < 0.5:
            log.put(key, "1")
        else:
            log.delete(key)
    ending.set()
    for reader in readers:
        reader.join(20)
    assert not wrong
    assert sorted(log.view) == [key for key, _ in log.view.range()]


class Pausing(bytes):
    """A key that lets another thread run when a dict is about to store it."""

    meanwhile: Callable[[], object]

    def __hash__(self) -> int:
        self.meanwhile()
        return super().__hash__()


def begun_apart(function: Callable[[], object]) -> Callable[[], object]:
    """Return a function that begins a call in a thread once, and waits a moment for its end."""
    threads: list[threading.Thread] = []

    def begin() -> None:
        if not threads:
            threads.append(threading.Thread(target=function))
            threads[0].start()
            threads[0].join(0.1)

    return begin


@pytest.mark.parametrize("way", ["one", "many", "snapshot"])
def test_the_order_begins_between_two_writes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 5: a key that is written while the first range builds the order is in later ranges."""
    storage = MemoryDirectoryStorage()
    entries: Any = storage.mapping("entries")
    begin = begun_apart(lambda: list(storage.range(b"", None)))
    if way == "one":
        key = Pausing(b"k")
        key.meanwhile = begin
        entries[key] = b"packed"
    elif way == "many":

        def rows() -> Iterator[tuple[bytes, bytes]]:
            begin()
            yield b"k", b"packed"

        entries.update(rows())
    else:
        frozen = storage.snapshot("entries", lambda _index, _packed: None)
        keep = WrittenDict._keep_former
        monkeypatch.setattr(WrittenDict, "_keep_former", lambda written, keys: (begin(), keep(written, keys)))
        entries[b"k"] = b"packed"
        frozen.close()
    assert list(storage.range(b"", None)) == [b"k"]


@pytest.mark.parametrize("frozen", [False, True])
def test_pages_of_an_index_go_over_its_keys_once(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(Directory("d", indexes=[Index("g")]))
    log.load([(b"%05d" % number, b'{"g":%d}' % (number % 2), 1) for number in range(10_000)])
    view = log.view
    if frozen:
        served = Served(lambda: NotReady("not ready"), lambda: 0.0, lambda _: log.table)
        served.swap(log.table.lookup_snapshot())
        served.open = True
        view = view.of(served)
    log.put("00003", '{"g":0}')
    looks = []
    names = MemoryPostings.lookup_keys
    monkeypatch.setattr(MemoryPostings, "lookup_keys", lambda filed, term: looks.append(term) or names(filed, term))
    keys: list[str] = []
    while page := [entry.key for entry in islice(view.find_entries_from({"g": 1}, keys[-1] if keys else None), 100)]:
        keys += page
    expected = [f"{number:05}" for number in range(1, 10_000, 2)]
    assert keys == (expected if frozen else [key for key in expected if key != "00003"])
    assert looks == [1]


def test_pages_of_an_index_that_changes(seeded: random.Random) -> None:
    """Guarantee 5: against a plain model; terms get many keys, and lose all of them."""
    log = Log(Directory("d", indexes=[Index("g")]))
    model: dict[str, int] = {}
    for step in range(12):
        group = step % 2
        rows = [(f"{seeded.randrange(2000):04}", seeded.choice([group, group, 1 - group])) for _ in range(1500)]
        for key, value in rows if step != 6 else [(key, 2) for key in model]:
            if seeded.random() < 0.2:
                log.delete(key)
                model.pop(key, None)
            else:
                log.put(key, b'{"g":%d}' % value)
                model[key] = value
        for value in range(3):
            keys = [entry.key for entry in log.view.find_entries_from({"g": value}, "0100")]
            assert keys == sorted(key for key, has in model.items() if has == value and key > "0100")
