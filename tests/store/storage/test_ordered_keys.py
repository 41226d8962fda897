"""Keys in order: prefixes, ranges and pages while the directory changes."""

from __future__ import annotations

import random
import threading
from itertools import islice

import pytest

from compactory import Directory
from compactory.storage.ordered_keys import Ordered
from tests.store.tables import Log


def test_against_a_sorted_set(seeded: random.Random) -> None:
    keys = {b"%06d" % seeded.randrange(10**6) for _ in range(5000)}
    ordered, model = Ordered(), set(keys)
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
    ordered = Ordered()
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
    ordered = Ordered()
    ordered.add(b"new")
    ordered.discard(b"gone")
    ordered.build([b"a", b"gone"])
    assert list(ordered.range(b"", None)) == [b"a", b"new"]


def test_a_range_is_what_it_was_when_it_began() -> None:
    ordered = Ordered()
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
    after: str | None = None
    while page := list(islice(log.view.keys_from(after), 2)):
        keys += page
        after = page[-1]
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
            found = [key for key, _ in log.view.prefix("s") if len(key) == 4]
            if found != stays:
                wrong.append(f"{len(found)} of {len(stays)}")
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
