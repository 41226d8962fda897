"""Guarantees 5 and 6 step by step: what a reader would see after every single write to the mappings."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, MutableMapping
from typing import Any

import orjson
import pytest

from compactory import Directory, GlobalStore, Index, View, WaitTimeout
from compactory.errors import NotReady
from compactory.read.served import Served
from compactory.records import Partition
from compactory.storage.memory_directory import MemoryDirectoryStorage, MemoryPostings
from compactory.table.table import Table
from tests.store.tables import Log
from tests.store.topics import Topics


class Watched(dict[Any, Any]):
    """A dict that tells of each change, after it."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self.tell = tell

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.tell()

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.tell()

    def pop(self, *args: Any) -> Any:
        value = super().pop(*args)
        self.tell()
        return value


class WatchedPostings(MemoryPostings):
    """An index that tells of each change."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self.tell = tell

    def add(self, term: Any, name: bytes) -> None:
        super().add(term, name)
        self.tell()

    def discard(self, term: Any, name: bytes) -> None:
        super().discard(term, name)
        self.tell()


class WatchedShelf(MemoryDirectoryStorage):
    """Lends watched dicts and indexes; ``check`` runs after every single change of any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Callable[[], None] = lambda: None
        self.entries = Watched(self._tell)
        self._parts = {"entries": self.entries}

    def mapping(self, part: str) -> MutableMapping[bytes, bytes]:
        return self._parts.setdefault(part, Watched(self._tell))

    def postings(self, index: str) -> WatchedPostings:
        return self._postings.setdefault(index, WatchedPostings(self._tell))  # type: ignore[return-value]

    def _tell(self) -> None:
        self.check()


@pytest.mark.parametrize("key", [None, "name"])
def test_an_entry_that_is_overwritten_is_there_at_every_step(key: str | None, seeded: random.Random) -> None:
    """Guarantee 5: by key, by unique index and by shared index, while fields that indexes hang on change."""
    directory = Directory("d", key=key, indexes=[Index("unique", unique=True), Index("group")])
    directory_storage = WatchedShelf()
    log = Log(directory)
    log.table = Table(directory, directory_storage)
    served = Served(lambda: NotReady("never"), lambda: 0.0, lambda _: log.table)
    served.swap(log.table)
    served.open = True
    view: View[Any] = View(directory, served)
    names = [f"N{number}" for number in range(4)]

    def write(number: int) -> None:
        unique = seeded.choice([f"u{number}", f"v{number}"])
        doc = {"name": f"N{number}", "unique": unique, "group": seeded.choice("ab")}
        log.put(f"N{number}", orjson.dumps(doc))

    for number in range(4):
        write(number)
    steps = [0]

    def check() -> None:
        steps[0] += 1
        assert sorted(view) == names
        reading = directory_storage.reading()
        filed = {name for term in reading.terms("group") for name in reading.keys_of_term("group", term)}
        assert filed == {name.encode() for name in names}, "out of one group, not in the next"
        by_unique = {entry.key for u in view.index("unique") for entry in view.find_entries(unique=u)}
        assert by_unique == set(names), "not to be found by its unique value"

    directory_storage.check = check
    for _ in range(300):
        write(seeded.randrange(4))
    assert steps[0] > 300


def test_a_position_moves_only_when_what_lies_before_it_is_visible(
    topics: Topics, open_store: Callable[..., GlobalStore]
) -> None:
    """Guarantee 6: here the record takes long to apply."""
    may_go_on = threading.Event()

    def decode(value: bytes) -> str:
        if threading.current_thread().name == "compactory-reader":
            may_go_on.wait(30)
        return value.decode()

    name = topics.create()
    store = open_store(Directory("d", topic=name, decode=decode))
    (token,) = topics.produce(name, ("a", "1"))
    with pytest.raises(WaitTimeout):
        store.wait_for(token, timeout=1)
    assert store.positions() == {Partition(name, 0): 0}
    may_go_on.set()
    store.wait_for(token)
    assert store["d"]["a"] == "1"
