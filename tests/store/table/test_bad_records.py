"""Guarantee 4 on a real topic: a bad record stops nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pydantic
import pytest

from compactory import BadRecord, Directory, GlobalStore, Index, StoreFailed, StoreState
from tests.store.topics import Topics, eventually

Opener = Callable[..., GlobalStore]
SECRET = "4111111111111111"


def test_bad_records_are_kept_and_reading_goes_on(
    topics: Topics, open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """Guarantee 4: raw bytes, offset, error, traceback and timestamp are kept; values appear in no log."""
    caplog.set_level(logging.DEBUG)
    name = topics.create(cleanup_policy="delete")  # a compacted topic would refuse the record without a key
    topics.produce(name, ("a", '{"n":1}'), ("b", f'{{"card":"{SECRET}'), ("c", '{"n":3}'), timestamp=1700000000123)
    store = open_store(name)
    topics.produce(name, ("a", f"[{SECRET}]"), (None, "{}"), ("d", '{"n":4}'))
    store.barrier()
    assert [store[name].get(key) for key in "acd"] == [{"n": 1}, {"n": 3}, {"n": 4}]
    with pytest.raises(BadRecord):
        store[name]["b"]
    first, second, third = store.quarantine()
    assert (first.topic, first.partition, first.offset, first.timestamp_ms) == (name, 0, 1, 1700000000123)
    assert (first.key, first.value) == (b"b", f'{{"card":"{SECRET}'.encode())
    assert first.error.startswith("DecodeError")
    assert "Traceback" in first.stacktrace
    assert (second.offset, second.key) == (3, b"a")
    assert "object is needed" in second.error
    assert third.key is None
    assert SECRET not in repr(store.quarantine())
    topics.produce(name, ("b", '{"n":2}'), ("a", None))
    store.barrier()
    assert store[name]["b"] == {"n": 2}
    assert "a" not in store[name]
    assert [error.key for error in store.quarantine()] == [None]
    assert "bad record" in caplog.text
    assert SECRET not in caplog.text


def test_on_bad_record_fail_stops_the_store(
    topics: Topics, open_store: Opener, kafka: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Guarantee 4: the strict choice, while loading and after. Not even then does a value get into the log."""

    class Card(pydantic.BaseModel):
        number: int

    strict = topics.create()
    topics.produce(strict, ("a", f'{{"number":"x{SECRET}"}}'))
    with pytest.raises(StoreFailed, match="offset 0: ValidationError"):
        open_store(Directory("cards", topic=strict, decode=Card), on_bad_record="fail")
    assert "the reader died" in caplog.text
    assert SECRET not in caplog.text
    name = topics.create()
    topics.produce(name, ("a", '{"n":1}'))
    store = open_store(name, on_bad_record="fail")
    topics.produce(name, ("a", "bad"))
    eventually(lambda: store.state is StoreState.FAILED)
    assert store.positions()[next(iter(store.positions()))] == 1
    with pytest.raises(StoreFailed, match=f"bad record in {name} partition 0 offset 1"):
        store.barrier()
    again = GlobalStore(kafka, [name], on_bad_record="fail")
    with pytest.raises(StoreFailed, match="offset 1: DecodeError"):
        again.start()
    again.close()


def test_user_callables_that_raise_never_kill_the_reader(topics: Topics, open_store: Opener) -> None:
    """Guarantee 4."""

    def decode(value: bytes) -> str:
        if value == b'{"id":2}':
            raise RecursionError("a user's bug")
        return value.decode()

    name = topics.create()
    topics.produce(name, *((str(number), f'{{"id":{number}}}') for number in range(4)))
    store = open_store(Directory("d", topic=name, key="id", decode=decode, indexes=[Index("id", unique=True)]))
    assert set(store["d"]) == {"0", "1", "3"}
    with pytest.raises(BadRecord):
        store["d"]["2"]
    assert store["d"].one(id=3) == '{"id":3}'
    assert store.ready


def test_a_callable_that_ends_the_interpreter_ends_the_store_loudly(topics: Topics, open_store: Opener) -> None:
    """Guarantee 7: whatever ends the reader is seen."""

    def decode(value: bytes) -> str:
        if value == b"exit":
            raise SystemExit(3)
        return value.decode()

    name = topics.create()
    store = open_store(Directory("d", topic=name, decode=decode))
    topics.produce(name, ("a", "exit"))
    eventually(lambda: store.state is StoreState.FAILED)
    assert isinstance(store.failure, SystemExit)


def test_only_so_many_bad_records_are_kept_whole(topics: Topics, open_store: Opener) -> None:
    """Guarantee 4 within bounded memory: which keys are bad stays known beyond that."""
    name = topics.create()
    topics.produce(name, *((str(number), "bad") for number in range(1100)))
    store = open_store(name)
    errors = store.quarantine()
    assert len(errors) == 1000
    assert errors[-1].offset == 1099
    with pytest.raises(BadRecord):
        store[name]["0"]


def test_a_bad_record_is_retried_once_its_cause_is_gone(topics: Topics, open_store: Callable[..., GlobalStore]) -> None:
    """Guarantee 4: retry replays it, where it still is the newest of its key."""
    known = {"good"}

    def decode(value: bytes) -> str:
        if value.decode() not in known:
            raise ValueError("not known yet")
        return value.decode()

    name = topics.create()
    topics.produce(name, ("a", "good"), ("a", "later"), ("b", "later"), ("c", "never"))
    store = open_store(Directory(name, decode=decode))
    errors = {error.key: error for error in store.quarantine()}
    assert store[name]["a"] == "good"
    with pytest.raises(BadRecord):
        store[name]["b"]
    assert len(store.retry()) == 3
    assert store.bad_records == 3, "tried again, not met again"
    known.add("later")
    assert [error.key for error in store.retry()] == [b"c"]
    assert store[name] == {"a": "later", "b": "later"}
    assert [error.key for error in store.quarantine()] == [b"c"]
    assert store.retry(errors[b"a"]) == [errors[b"a"]]  # dealt with already
    assert store.skip(errors[b"c"]) == []
    assert store.quarantine() == []
    with pytest.raises(KeyError):
        store[name]["c"]
    (token,) = topics.produce(name, ("c", "good"))
    store.wait_for(token)
    assert store[name]["c"] == "good"


def test_what_is_bad_and_skipped_later_is_superseded_as_ever(
    topics: Topics, open_store: Callable[..., GlobalStore]
) -> None:
    """Guarantee 4: a record that a newer one superseded is not retried over it."""
    name = topics.create()
    topics.produce(name, ("a", "{"), ("a", '{"n":1}'), ("b", "["))
    store = open_store(name)
    (left,) = store.quarantine()
    assert left.key == b"b"
    assert store.retry() == [left]
    assert store[name] == {"a": {"n": 1}}
