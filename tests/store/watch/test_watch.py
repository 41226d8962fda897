"""Changes of a directory: each one, in order, from any cursor, and a clear word where some are gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactory import (
    AsyncGlobalStore,
    Change,
    ConfigError,
    Cursor,
    Directory,
    GlobalStore,
    Index,
    NotReady,
    RocksDB,
    StoreClosed,
    StoreFailed,
    WatchExpired,
    testing,
)
from compactory.watch import change_log
from tests.store.ingest.test_rebuild import recreate
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]
SHAPES = [
    Directory("d"),
    Directory("d", decode=bytes),
    Directory("d", active="on"),
    Directory("d", key="id"),
    Directory("d", key="id", active="on", indexes=[Index("n")]),
]
RECORDS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.none() | st.fixed_dictionaries({"id": st.sampled_from("xyz"), "n": st.integers(0, 2), "on": st.booleans()}),
    ),
    max_size=15,
)


@pytest.fixture
def store() -> Iterator[testing.InProcessStore]:
    with testing.store({"d": {"a": {"n": 1}}}) as store:
        yield store


def seen(changes: list[Change[Any]]) -> list[tuple[str, str, Any, Any]]:
    return [(change.kind, change.key, change.old, change.new) for change in changes]


def test_each_change_comes_with_old_and_new_value(store: testing.InProcessStore) -> None:
    with store["d"].watch() as watch:
        token = store.put("d", "a", {"n": 2}, timestamp_ms=77)
        store.put("d", "b", {"n": 3})
        store.delete("d", "a")
        store.delete("d", "unknown")
        first, second, third = (next(watch) for _ in range(3))
    assert seen([first, second, third]) == [
        ("put", "a", {"n": 1}, {"n": 2}),
        ("put", "b", None, {"n": 3}),
        ("delete", "a", {"n": 2}, None),
    ]
    assert (first.partition, first.offset, first.timestamp_ms, first.raw) == (0, token.offset, 77, b'{"n":2}')
    assert str(first.cursor) == f"in-process-d;0:{token.offset + 1}"


@pytest.mark.parametrize("directory", SHAPES, ids=["plain", "bytes", "active", "key", "all"])
@settings(max_examples=10)
@given(data=st.data())
def test_changes_add_up_to_what_lookups_find(directory: Directory[Any], data: st.DataObject) -> None:
    """Applied to what was there before, from any cursor on, they make what is there now."""
    with testing.store({directory: {}}, unusable_directory="serve") as store:
        view = store[directory]
        watch = view.watch()
        expected: dict[str, Any] = {}
        states = [(watch.cursor, dict(expected))]
        for key, value in data.draw(RECORDS):
            store.put(directory, key, value)
            for change in watch.take():
                assert change.old == expected.get(change.key)
                if change.kind == "put":
                    expected[change.key] = change.new
                else:
                    del expected[change.key]
            assert expected == dict(view.items())
            states.append((watch.cursor, dict(expected)))
        cursor, there = data.draw(st.sampled_from(states))
        for change in view.watch(Cursor.parse(str(cursor))).take():
            assert change.old == there.get(change.key)
            there |= {change.key: change.new}
            if change.kind == "delete":
                del there[change.key]
        assert there == dict(view.items())


def test_a_record_that_moves_an_entry_makes_two_changes_that_are_resumed_together() -> None:
    with testing.store({Directory("d", key="id"): {"k": {"id": "x"}}}) as store:
        watch = store["d"].watch()
        before = watch.cursor
        store.put("d", "k", {"id": "y"})
        put, delete = watch.take()
        assert seen([put, delete]) == [("put", "y", None, {"id": "y"}), ("delete", "x", {"id": "x"}, None)]
        assert put.cursor == before
        assert len(store["d"].watch(put.cursor).take()) == 2
        assert store["d"].watch(delete.cursor).take() == []


def test_a_watch_waits_until_it_is_closed_by_another_thread(store: testing.InProcessStore) -> None:
    watch, changes = store["d"].watch(), []
    thread = threading.Thread(target=lambda: changes.extend(watch))
    thread.start()
    store.put("d", "b", {})
    eventually(lambda: len(changes) == 1)
    watch.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_slow_watch_is_told_so_and_goes_on_from_the_cursor(
    store: testing.InProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "_MAX_CHANGES", 4)
    slow = store["d"].watch()
    old = slow.cursor
    for number in range(9):
        store.put("d", "a", {"n": number})
    for watching in (slow.take, lambda: store["d"].watch(old)):
        with pytest.raises(WatchExpired, match="read the directory, then watch on") as caught:
            watching()
    assert dict(store["d"].items()) == {"a": {"n": 8}}
    again = store["d"].watch(caught.value.cursor)
    store.put("d", "a", {"n": 9})
    assert seen(again.take()) == [("put", "a", {"n": 8}, {"n": 9})]


def test_few_large_values_are_bounded_too(store: testing.InProcessStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "_MAX_BYTES", 1000)
    slow = store["d"].watch()
    for _ in range(4):
        store.put("d", "a", {"text": "x" * 400})
    with pytest.raises(WatchExpired):
        slow.take()
    log = store["d"]._served.table.changes
    assert log._bytes == sum(map(change_log.size_of, log._changes)) <= 1250


def test_cursors_of_another_topic_and_of_before_the_first_watch_are_expired(store: testing.InProcessStore) -> None:
    for cursor in ("other;0:1", "in-process-d;0:0", "in-process-d;"):
        with pytest.raises(WatchExpired):
            store["d"].watch(Cursor.parse(cursor))


@pytest.mark.parametrize("text", ["", "abc", "abc;x", "abc;0", "abc;0:-1", "abc;0:1;", "abc;0:1,"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a cursor"):
        Cursor.parse(text)


def test_a_cursors_text_is_no_cursor(store: testing.InProcessStore) -> None:
    with pytest.raises(ConfigError, match=r"Cursor\.parse"):
        store["d"].watch("in-process-d;0:1")  # type: ignore[arg-type]


def test_a_cursor_that_is_ahead_skips_what_it_has_seen(store: testing.InProcessStore) -> None:
    """It may be of another process, which has read further."""
    ahead = store["d"].watch(Cursor("in-process-d", {0: 3}))
    for number in range(4):
        store.put("d", "a", {"n": number})
    assert [change.offset for change in ahead.take()] == [3, 4]


def test_a_bad_record_that_is_retried_is_a_change() -> None:
    good = threading.Event()

    def decode(value: bytes) -> bytes:
        if value == b"bad" and not good.is_set():
            raise ValueError
        return value

    with testing.store({Directory("d", decode=decode): {"a": b"1"}}) as store:
        watch = store["d"].watch()
        store.put("d", "a", b"bad")
        store.put("d", "b", b"2")
        before = store["d"].watch().cursor
        good.set()
        assert store.retry() == []
        assert seen(watch.take()) == [("put", "b", None, b"2"), ("put", "a", b"1", b"bad")]
        assert seen(store["d"].watch(before).take()) == [("put", "a", b"1", b"bad")]


def test_how_a_watch_ends_is_how_the_store_ended() -> None:
    store = testing.store({"d": {}}, start=False)
    with pytest.raises(NotReady):
        store["d"].watch()
    store.start()
    failing = store["d"].watch()
    store.put("d", "a", {})
    store.fail()
    assert next(failing).key == "a"
    with pytest.raises(StoreFailed):
        next(failing)
    store.close()
    with pytest.raises(StoreClosed):
        store["d"].watch()
    with testing.store({"d": {}}) as store:
        closed = store["d"].watch()
    with pytest.raises(StoreClosed):
        next(closed)


def test_watches_that_share_a_log_go_on_from_each_other(store: testing.InProcessStore) -> None:
    """Taken in parts, no further than another one, and forked: each has the cursor of what it returned."""
    watch = store["d"].watch()
    ahead = store["d"].watch(Cursor("in-process-d", {0: 4}))
    tokens = [store.put("d", "a", {"n": number}) for number in range(4)]
    fork = watch.fork()
    (first,) = watch.take(most_bytes=1)
    assert (first.offset, str(watch.cursor)) == (tokens[0].offset, str(first.cursor))
    assert [change.cursor for change in fork.take(until=watch)] == [first.cursor]
    assert fork.take(until=watch) == []
    assert fork.is_level_with(watch)
    assert [change.offset for change in watch.take()] == [token.offset for token in tokens[1:]]
    assert not fork.is_level_with(watch)
    late = store["d"].watch(first.cursor)
    assert not late.is_level_with(fork)  # which has yet to see what the cursor may know of
    assert [change.cursor for change in late.take()] == [change.cursor for change in fork.take()]
    assert not ahead.is_level_with(watch)
    assert [change.offset for change in ahead.take()] == [4]
    assert all(each.is_level_with(watch) for each in (late, fork, ahead))


def test_two_changes_of_a_record_are_taken_together() -> None:
    with testing.store({Directory("d", key="id"): {"k": {"id": "x"}}}) as store:
        watch = store["d"].watch()
        store.put("d", "k", {"id": "y"})
        store.put("d", "k", {"id": "y", "n": 2})
        assert [change.key for change in watch.take(most_bytes=1)] == ["y", "x"]
        assert [change.key for change in watch.take(most_bytes=1)] == ["y"]


def test_asyncio_watches_without_a_thread(store: testing.InProcessStore) -> None:
    async def two() -> list[str]:
        keys = []
        async with aclosing(AsyncGlobalStore.of(store).watch("d")) as changes:
            first = asyncio.ensure_future(anext(changes))
            log = store["d"]._served.table.changes
            while not log._listeners:
                await asyncio.sleep(0)
            await asyncio.to_thread(store.put, "d", "b", {})
            keys.append((await first).key)
            await asyncio.to_thread(store.delete, "d", "a")
            keys.append((await anext(changes)).key)
        assert not log._listeners
        return keys

    assert asyncio.run(two()) == ["b", "a"]


def test_what_is_kept_no_more_is_known_of_every_partition(
    topics: Topics, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 2: also where records of several partitions become visible together, no gap goes unnoticed."""
    monkeypatch.setattr(change_log, "_MAX_CHANGES", 100)
    name = topics.create(partitions=2)
    store = open_store(name)
    watch = store[name].watch()
    cursors = [watch.cursor]
    for _ in range(3):
        with topics.transaction() as producer:  # so that both partitions come at once
            for number in range(60):
                producer.produce(name, "{}", f"{number}", number % 2)
            producer.commit_transaction(10)
        store.barrier(20)
        cursors += [change.cursor for change in watch.take()]
    expired = 0
    for seen, cursor in enumerate(cursors):
        try:
            assert len(store[name].watch(cursor).take()) == 180 - seen
        except WatchExpired:
            expired += 1
    assert 60 <= expired < 180


def test_a_topic_that_is_created_again_ends_watches(topics: Topics, open_store: Opener) -> None:
    """Guarantee 2: no change of the former topic is taken for one of the new."""
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    store = open_store(name)
    watch = store[name].watch()
    recreate(topics, name)
    topics.produce(name, ("b", "{}"))
    with pytest.raises(WatchExpired, match="read anew") as caught:
        next(watch)
    again = store[name].watch(caught.value.cursor)
    (token,) = topics.produce(name, ("c", "{}"))
    store.wait_for(token)
    assert [change.key for change in again.take()] == ["c"]


@pytest.mark.parametrize("directory", ["plain", "key"])
def test_on_disk_a_watch_goes_on_after_a_restart(
    topics: Topics, open_store: Opener, tmp_path: Path, directory: str
) -> None:
    name = topics.create(partitions=2)
    kept = Directory(name, key="id" if directory == "key" else None, keep_changes=True)
    topics.produce(name, ("a", '{"id": "a"}'))
    store = open_store(kept, backend=RocksDB(tmp_path))
    watch = store[name].watch()
    topics.commit(name, ("b", '{"id": "b"}'), partition=1)
    change = next(watch)
    assert change.key == "b"
    store.close()
    topics.produce(name, ("a", '{"id": "a", "n": 2}'), ("c", '{"id": "c"}'))
    topics.produce(name, ("b", None), partition=1)
    store = open_store(kept, backend=RocksDB(tmp_path))
    changes = store[name].watch(Cursor.parse(str(change.cursor))).take()
    assert sorted((change.kind, change.key) for change in changes) == [("delete", "b"), ("put", "a"), ("put", "c")]
    assert {change.key: change.old for change in changes}["a"] == {"id": "a"}


def test_on_disk_a_restart_forgets_what_the_former_process_applied(
    topics: Topics, open_store: Opener, tmp_path: Path
) -> None:
    name = topics.create()
    kept = Directory(name, keep_changes=True)
    store = open_store(kept, backend=RocksDB(tmp_path))
    watch = store[name].watch()
    topics.produce(name, ("a", "{}"), ("b", "{}"))
    older, newest = next(watch).cursor, next(watch).cursor
    store.close()
    topics.produce(name, ("c", "{}"))
    view = open_store(kept, backend=RocksDB(tmp_path))[name]
    assert [change.key for change in view.watch(newest).take()] == ["c"]
    with pytest.raises(WatchExpired) as expired:
        view.watch(older)
    assert view.watch(expired.value.cursor).take() == []


def test_in_memory_changes_from_before_a_restart_are_expired(topics: Topics, open_store: Opener) -> None:
    name = topics.create()
    topics.produce(name, ("a", "{}"))
    kept = Directory(name, keep_changes=True)
    store = open_store(kept)
    cursor = store[name].watch().cursor
    store.close()
    assert open_store(kept)[name].watch(cursor).take() == []
    topics.produce(name, ("b", "{}"))
    with pytest.raises(WatchExpired):
        open_store(kept)[name].watch(cursor)
