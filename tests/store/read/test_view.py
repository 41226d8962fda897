"""What reads may ask for: shared values, freshness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from compactory import ConfigError, Directory, GlobalStore, Index, StaleData, View, testing
from compactory.errors import NotReady
from compactory.read.served import Served
from tests.store.tables import Log
from tests.store.topics import Topics, eventually


def test_cached_values_are_shared_and_can_not_be_changed() -> None:
    """Guarantee 5: until the record is not the newest any more."""
    log = Log(Directory("d", cache_decoded=True))
    log.put("a", '{"n":1,"list":[{"x":1}]}')
    first = log.view["a"]
    assert log.view["a"] is first
    assert log.view.get("a") is first
    assert first == {"n": 1, "list": ({"x": 1},)}
    assert isinstance(first, MappingProxyType)
    with pytest.raises(TypeError):
        first["n"] = 2  # type: ignore[index]
    with pytest.raises(TypeError):
        first["list"][0]["x"] = 2
    log.put("a", '{"n":2}')
    assert log.view["a"] == {"n": 2}
    log.delete("a")
    assert log.view.get("a") is None
    log.put("a", '{"n":2}')
    assert log.view["a"] == {"n": 2}


@pytest.mark.parametrize("change", ["put", "delete", "retry"])
def test_a_cached_value_is_never_older_than_the_last_change(change: str) -> None:
    """Guarantee 6: who waited for a change reads it, whoever read the value before."""
    good = {b"1"}

    def decode(value: bytes) -> bytes:
        if value not in good:
            raise ValueError("not yet")
        return value

    log = Log(Directory("d", decode=decode, cache_decoded=True))
    log.put("a", "1")
    assert log.view["a"] == b"1"
    if change == "retry":
        log.put("a", "2")
    assert log.view["a"] == b"1"
    good.add(b"2")
    if change == "put":
        log.put("a", "2")
    elif change == "delete":
        log.delete("a")
    else:
        [bad] = log.table.quarantine
        assert log.table.retry(bad)
    assert log.view.get("a") == (None if change == "delete" else b"2")


def test_cached_values_of_a_class_and_of_deleted_entries() -> None:
    @dataclass(frozen=True)
    class Terminal:
        n: int

    log = Log(Directory("d", decode=Terminal, cache_decoded=True))
    for number in range(3000):
        log.put(f"k{number}", f'{{"n":{number}}}')
        assert log.view[f"k{number}"] is log.view[f"k{number}"]
        log.delete(f"k{number}")
    assert len(log.view._shared) <= 1001


def with_age(log: Log, age: list[float]) -> View[Any]:
    served = Served(lambda: NotReady("never"), lambda: age[0], lambda _: log.table)
    served.swap(log.table)
    served.open = True
    return View(log.table.directory, served)


READS: dict[str, Callable[[View[Any]], Any]] = {
    "[]": lambda view: view["a"],
    "get": lambda view: view.get("a"),
    "get_many": lambda view: view.get_many(["a"]),
    "in": lambda view: "a" in view,
    "len": len,
    "iteration": list,
    "items": lambda view: list(view.items()),
    "raw": lambda view: view.raw("a"),
    "entry": lambda view: view.entry("a"),
    "record": lambda view: view.record(b"a"),
    "find": lambda view: view.find(n=1),
    "one": lambda view: view.one(u=1),
    "entries": lambda view: view.find_entries(n=1),
    "index": lambda view: view.index("n")[1],
    "prefix": lambda view: list(view.prefix("a")),
    "range": lambda view: list(view.range("a")),
}


@pytest.mark.parametrize("read", READS)
def test_every_read_honours_the_directorys_max_age(read: str) -> None:
    """Guarantee 5: failing closed where the directory says so."""
    age = [1.0]
    log = Log(Directory("d", indexes=[Index("n"), Index("u", unique=True)], max_age=5, on_stale="raise"))
    log.put("a", '{"n":1,"u":1}')
    view = with_age(log, age)
    assert READS[read](view)
    age[0] = 7.5
    with pytest.raises(StaleData, match=r"7\.5 s ago; at most 5 s") as caught:
        READS[read](view)
    assert (caught.value.age, caught.value.max_age) == (7.5, 5)
    assert view.within(10)["a"]
    age[0] = float("inf")
    with pytest.raises(StaleData):
        READS[read](view)


def test_one_text_is_not_taken_for_the_keys_of_its_letters() -> None:
    log = Log(Directory("d"))
    log.put("T1", "{}")
    with pytest.raises(TypeError, match=r"several keys, such as \['T1'\]"):
        log.view.get_many("T1")


def test_a_read_may_demand_freshness_and_be_served_all_the_same() -> None:
    """Guarantee 5: failing open, and counted."""
    age = [9.0]
    log = Log(Directory("d"))
    log.put("a", "{}")
    view = with_age(log, age)
    assert view["a"] == {}
    assert view.stale_reads == 0
    assert view.get("a", max_age=5) == {}
    assert view.get_many(["a"], max_age=5) == {"a": {}}
    assert view.raw("a", max_age=5) == b"{}"
    assert view.entry("a", max_age=5).value == b"{}"
    assert view.within(5)["a"] == {}
    assert view.stale_reads == 5
    assert view.get("a", max_age=10) == {}
    assert view.stale_reads == 5
    assert view.age == 9.0


def test_bad_ages_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Directory("d", max_age=0, on_stale="ignore")  # type: ignore[arg-type]
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="max_age"):
        Log(Directory("d")).view.within(-1)


def test_keys_in_two_partitions_are_listed() -> None:
    """Guarantee 1: one key in two partitions is counted and listed."""
    log = Log(Directory("d"))
    log.table.multi_partition = True
    log.put("a", '{"n":1}', at=5, partition=0)
    log.put("a", '{"n":2}', at=4, partition=3)
    log.put("b", '{"n":1}', at=5, partition=0)
    assert log.view["a"] == {"n": 1}
    assert log.table.conflicts.count == 1
    (found,) = log.table.conflicts.contested_keys.values()
    assert (found.directory, found.key, found.partition, found.other) == ("d", b"a", 3, 0)


def test_the_age_of_a_store_that_follows_is_small(topics: Topics, open_store: Callable[..., GlobalStore]) -> None:
    """Guarantee 5: a directory that says how old it may be is served by a healthy store."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    store = open_store(Directory(name, max_age=10, on_stale="raise"))
    assert store[name]["a"] == {}
    assert store[name].age < 5
    (token,) = topics.produce(name, ("b", "{}"))
    store.wait_for(token)
    eventually(lambda: store[name].age < 1.5)
    assert store.contested() == []


def test_whole_numbers_of_any_size_are_exact() -> None:
    """A rounded amount or id is a wrong one: values, and keys and indexes that are made of them."""
    number = 123456789012345678901234567890
    directory = Directory("d", key="id", indexes=[Index("n")])
    with testing.store({directory: {"k": f'{{"id": {number}, "n": {-number}}}'}}) as store:
        assert store["d"][str(number)] == {"id": number, "n": -number}
        assert store["d"].find(n=-number) == [{"id": number, "n": -number}]
