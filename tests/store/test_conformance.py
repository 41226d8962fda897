"""One suite for every store: in memory and on disk over a real Kafka, and the in-process one for users' tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from compactory import (
    BadRecord,
    Change,
    ConfigError,
    Cursor,
    Directory,
    GlobalStore,
    Index,
    NotReady,
    RocksDB,
    StaleData,
    StoreClosed,
    StoreState,
    Token,
    UnknownDirectory,
    UnknownIndex,
    WaitTimeout,
    WatchExpired,
    testing,
)
from compactory.storage.memory_backend import Memory
from tests.store.model import Model, Row
from tests.store.table.test_history import SHAPES, compare, random_value
from tests.store.topics import Topics


class Fed(Protocol):
    """A store of some directories of one topic, and what writes to that topic; a write returns before it is visible."""

    store: GlobalStore

    def put(self, key: str, value: bytes | None, at: int = 1) -> Token: ...


class OnKafka:
    def __init__(self, store: GlobalStore, topics: Topics, topic: str) -> None:
        self.store, self._topics, self._topic = store, topics, topic

    def put(self, key: str, value: bytes | None, at: int = 1) -> Token:
        [token] = self._topics.produce(self._topic, (key, value), timestamp=at)
        return token


class InProcess:
    def __init__(self, store: testing.InProcessStore) -> None:
        self.store = store

    def put(self, key: str, value: bytes | None, at: int = 1) -> Token:
        return self.store.put(next(iter(self.store)), key, value, timestamp_ms=at)


@pytest.fixture(params=["memory", "rocksdb", "in process"])
def feed(request: pytest.FixtureRequest, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[Callable[..., Fed]]:
    """Makes stores that are not started, of directories by name and options; closed after the test."""
    stores: list[GlobalStore] = []

    def make(**directories: dict[str, Any]) -> Fed:
        topic = unique("conformance")
        given = [Directory(name, topic=topic, **options) for name, options in directories.items()]
        fed: Fed
        if request.param == "in process":
            fed = InProcess(testing.store({each: {} for each in given}, start=False, unusable_directory="serve"))
        else:
            topics: Topics = request.getfixturevalue("topics")
            backends = {"memory": Memory, "rocksdb": partial(RocksDB, tmp_path / "store")}
            backend = backends[request.param]()
            topics.create(name=topic)
            fed = OnKafka(
                GlobalStore(topics.address, given, backend=backend, unusable_directory="serve"), topics, topic
            )
        stores.append(fed.store)
        return fed

    yield make
    for store in reversed(stores):
        store.close()


def test_histories(feed: Callable[..., Fed], seeded: random.Random) -> None:
    """Guarantees 1, 4 and 5: what was there before the start and what came later; every way to read agrees."""
    fed = feed(**{shape.replace(" ", "_"): options for shape, options in SHAPES.items()})
    models = [Model(directory) for directory in fed.store.directories]
    rows: list[Row] = []

    def write(count: int) -> Token:
        for _ in range(count):
            key, value, at = seeded.choice("123456789"), random_value(seeded), seeded.randrange(1, 20)
            token = fed.put(key, value, at)
            rows.append(Row(key.encode(), value, 0, token.offset, at))
        return token

    write(30)
    fed.store.start()
    kept = set(fed.store.quarantine()) if fed.store.bad_records == 0 else set()  # a copy that was there had them
    for step in range(8):
        for model in models:
            model.rows = rows
            compare(fed.store[model.directory.name], model)
        fed.store.wait_for(write(seeded.randrange(1, 10)), timeout=20)
        assert fed.store.bad_records >= len(set(fed.store.quarantine()) - kept), step


def test_reads(feed: Callable[..., Fed]) -> None:
    fed = feed(d={"indexes": [Index("n", unique=True), Index("a.b")], "max_age": 3600, "on_stale": "raise"})
    for number, key in enumerate(["b", "a", "ab", "c"]):
        last = fed.put(key, b'{"n":%d,"a":{"b":"x"}}' % number, at=5)
    with fed.store as store:
        view = store["d"]
        assert (list(view.prefix("a")), [key for key, _ in view.range("ab", "c")]) == (
            [("a", {"n": 1, "a": {"b": "x"}}), ("ab", {"n": 2, "a": {"b": "x"}})],
            ["ab", "b"],
        )
        assert view.entry("c") == ("c", b'{"n":3,"a":{"b":"x"}}', last.topic, 0, last.offset, 5)
        assert view.raw("a") == b'{"n":1,"a":{"b":"x"}}'
        assert view.one(n=2) == view["ab"]
        assert view.one(n=9) is None
        assert [found["n"] for found in view.find(**{"a.b": "x"})] == [1, 2, 0, 3]
        assert list(view.index("n")[1]) == ["n", "a"]
        assert view.get_many(["a", "z"]).keys() == {"a"}
        assert (len(view), "a" in view, "z" in view, view.get("z"), view.get("z", 1)) == (4, True, False, None, 1)
        assert view.age < 60
        assert view["a"] is not view["a"]
        with pytest.raises(KeyError):
            view["z"]
        with pytest.raises(TypeError):
            view[1]  # type: ignore[index]
        with pytest.raises(UnknownIndex):
            view.find(x=1)
        with pytest.raises(UnknownDirectory):
            store["e"]
        with pytest.raises(StaleData):
            view.within(1e-9)["a"]


def test_bad_records(feed: Callable[..., Fed]) -> None:
    """Guarantee 4: kept aside, the last good value stays; retry and skip."""
    good = {b"1"}

    def decode(value: bytes) -> bytes:
        if value not in good:
            raise ValueError("not yet")
        return value

    fed = feed(d={"decode": decode})
    with fed.store as store:
        fed.put("a", b"1")
        fed.put("a", b"2")
        store.wait_for(fed.put("b", b"3"), timeout=20)
        assert store["d"]["a"] == b"1"
        for read in (store["d"].__getitem__, store["d"].get, store["d"].raw):
            with pytest.raises(BadRecord):
                read("b")
        assert [bad.key for bad in store.quarantine()] == [b"a", b"b"]
        assert "ValueError" in store.quarantine()[0].error
        assert store.outstanding() == {"d": 2}
        good.add(b"2")
        assert [bad.key for bad in store.retry()] == [b"b"]
        assert store["d"]["a"] == b"2"
        store.skip(*store.quarantine())
        assert store.quarantine() == []
        with pytest.raises(KeyError):
            store["d"]["b"]
        assert "b" not in store["d"]


def test_states_waits_and_positions(feed: Callable[..., Fed]) -> None:
    """Guarantees 1 and 6."""
    fed = feed(d={})
    store = fed.store
    first = fed.put("a", b'{"n":1}')
    assert (store.state, store.ready, store.positions()) == (StoreState.NEW, False, {})
    for act in (lambda: store["d"]["a"], store.barrier, lambda: store.wait_for(first)):
        with pytest.raises(NotReady):
            act()
    store.start()
    assert (store.state, store.ready, store.live, store.blocking()) == (StoreState.READY, True, True, [])
    assert store.positions() == {first.place: 1} == store.end_offsets()
    token = fed.put("a", b'{"n":2}')
    store.wait_for(Token.parse(str(token)), timeout=20)
    assert store["d"]["a"] == {"n": 2}
    fed.put("a", None)
    store.barrier(20)
    assert "a" not in store["d"]
    assert store.topic_id(first.topic)
    with pytest.raises(WaitTimeout) as late:
        store.wait_for(Token(first.topic, 0, 1000), timeout=0.05)
    assert late.value.gap == {first.place: 998}
    with pytest.raises(ConfigError):
        store.wait_for(Token("other", 0, 0))
    store.close()
    for act in (lambda: store["d"]["a"], store.barrier, lambda: store.wait_for(token), lambda: list(store["d"])):
        with pytest.raises(StoreClosed):
            act()


def test_snapshots(feed: Callable[..., Fed]) -> None:
    fed = feed(d={"key": "k"})
    fed.put("1", b'{"k":"a"}')
    with fed.store as store, store.snapshot("d") as snapshot:
        store.wait_for(fed.put("1", b'{"k":"b"}'), timeout=20)
        assert snapshot.positions == {0: 1}
        assert [record.value for record in snapshot.records(range(1 << 16))] == [b'{"k":"a"}']
        assert list(store["d"]) == ["b"]


def test_changes(feed: Callable[..., Fed]) -> None:
    """Each in order with old and new value, and from any cursor on, until the store is closed."""
    fed = feed(d={"key": "k", "keep_changes": True})
    fed.put("1", b'{"k":"a"}')
    with fed.store as store:
        watch = store["d"].watch()
        fed.put("1", b'{"k":"b"}')
        fed.put("2", b'{"k":"b","n":2}', at=2)
        found = [next(watch) for _ in range(3)]
        assert [(change.kind, change.key, change.old, change.new) for change in found] == [
            ("put", "b", None, {"k": "b"}),
            ("delete", "a", {"k": "a"}, None),
            ("put", "b", {"k": "b"}, {"k": "b", "n": 2}),
        ]
        again = store["d"].watch(Cursor.parse(str(found[1].cursor)))
        assert [change.raw for change in again.take()] == [b'{"k":"b","n":2}']
        with pytest.raises(WatchExpired) as gone:
            store["d"].watch(Cursor("other", {0: 1}))
        assert gone.value.cursor == found[-1].cursor
    with pytest.raises(StoreClosed):
        next(watch)


def test_a_projection(feed: Callable[..., Fed]) -> None:
    """Guarantees 1 and 6: it has everything when the store is ready, and each record once that is visible."""

    class Keys(set[str]):
        def apply(self, change: Change[Any]) -> None:
            (self.discard if change.new is None else self.add)(change.key)

    fed = feed(d={"active": "on", "projection": Keys})
    fed.put("a", b"{}")
    fed.put("b", b'{"on":true}')
    fed.put("a", None)
    with fed.store as store:
        assert store["d"].projection == {"b"}
        store.wait_for(fed.put("c", b"{}"), timeout=20)
        assert store["d"].projection == {"b", "c"}
        store.wait_for(fed.put("b", b'{"on":false}'), timeout=20)
        assert store["d"].projection == {"c"}
