"""Guarantees 6 and 7: waiting for one's own writes, and being woken when there is nothing left to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from compactory import (
    CompactoryError,
    ConfigError,
    Directory,
    DirectoryWriter,
    GlobalStore,
    NotReady,
    Partition,
    StoreClosed,
    StoreFailed,
    StoreState,
    Token,
    Unreachable,
    WaitTimeout,
)
from tests.stack.apache_kafka import ApacheKafka
from tests.store.pausing import paused
from tests.store.topics import Topics, eventually, send

Opener = Callable[..., GlobalStore]


def test_a_token_waits_for_its_record(topics: Topics, open_store: Opener) -> None:
    """Guarantee 6: after wait_for the write is visible, plain and transactional."""
    name = topics.create(3)
    store = open_store(name)
    for number in range(30):
        partition = number % 3
        write = topics.commit if number % 5 == 0 else topics.produce
        key = f"k{partition}"  # one key in several partitions is decided by timestamps, equal within a millisecond
        (token,) = write(name, (key, f'{{"n":{number}}}'), partition=partition)
        store.wait_for(Token.parse(str(token)))
        assert store[name][key] == {"n": number}


def test_several_tokens(topics: Topics, open_store: Opener) -> None:
    """Guarantee 6."""
    first_topic, second_topic = topics.create(), topics.create(2)
    store = open_store(first_topic, second_topic)
    tokens = [
        *topics.produce(first_topic, ("a", "{}"), ("b", "{}")),
        *topics.produce(second_topic, ("c", "{}"), partition=1),
    ]
    store.wait_for(*tokens)
    assert set(store[first_topic]) == {"a", "b"}
    assert "c" in store[second_topic]
    store.wait_for()


def test_a_token_of_another_partition_never_satisfies(topics: Topics, open_store: Opener) -> None:
    """Guarantee 6: progress elsewhere, however far, says nothing about this partition."""
    name = topics.create(2)
    topics.produce(name, *((f"k{number}", "{}") for number in range(100)), partition=0)
    store = open_store(name)
    with pytest.raises(WaitTimeout) as caught:
        store.wait_for(Token(name, 1, 5), timeout=0.3)
    assert caught.value.gap == {Partition(name, 1): 6}
    assert f"{name}:1 by 6" in str(caught.value)
    with pytest.raises(WaitTimeout):
        store.wait_for(Token(name, 7, 0), timeout=0.2)


def test_tokens_that_can_never_be_satisfied_are_refused(topics: Topics, open_store: Opener) -> None:
    """Guarantee 6: at once, not after the time-out."""
    name = topics.create()
    store = open_store(name)
    with pytest.raises(ConfigError, match=f"it reads {name}"):
        store.wait_for(Token("another", 0, 0), timeout=60)
    with pytest.raises(WaitTimeout, match="deleted since"):
        store.wait_for(Token(name, 0, 0, "AAAAAAAAAAAAAAAAAAAAAQ"), timeout=60)


def test_a_barrier_covers_everything_written_before(topics: Topics, open_store: Opener) -> None:
    """Guarantee 6: control records at the end of every transaction included, quickly."""
    name = topics.create(2)
    store = open_store(name)
    for number in range(10):
        key = f"k{number % 2}"
        topics.commit(name, (key, f'{{"n":{number}}}'), partition=number % 2)
        topics.abort(name, (key, '{"n":-1}'), partition=number % 2)
        store.barrier()
        assert store[name][key] == {"n": number}
    waits = []
    for _ in range(20):
        began = time.monotonic()
        store.barrier()
        waits.append(time.monotonic() - began)
    assert sorted(waits)[10] < 0.2


def test_a_barrier_behind_an_open_transaction_times_out_with_the_gap(topics: Topics, open_store: Opener) -> None:
    """Guarantee 6."""
    name = topics.create()
    store = open_store(name)
    with topics.transaction() as producer:
        send(producer, name, [("a", "{}")])
        with pytest.raises(WaitTimeout) as caught:
            store.barrier(timeout=0.5)
        assert caught.value.gap == {Partition(name, 0): 1}
        assert store.lag() == {Partition(name, 0): 1}
        producer.commit_transaction(10)
    store.barrier()
    assert "a" in store[name]


def test_waits_keep_their_deadline_while_the_broker_does_not_answer(
    own_kafka: ApacheKafka, topics: Topics, open_store: Opener
) -> None:
    """Guarantee 6: and what was asked for meanwhile comes once it does."""
    name = topics.create()
    store = open_store(name)
    topics.produce(name, ("a", "{}"))
    store.barrier()
    with paused(own_kafka):
        for wait in (store.barrier, lambda timeout: store.wait_for(Token(name, 0, 1), timeout=timeout)):
            began = time.monotonic()
            with pytest.raises((Unreachable, WaitTimeout)):
                wait(timeout=0.5)
            assert 0.4 < time.monotonic() - began < 4
        assert "a" in store[name]
    [token] = topics.produce(name, ("b", "{}"))
    store.wait_for(token, timeout=20)
    assert "b" in store[name]


def test_many_threads_read_their_own_writes(topics: Topics, open_store: Opener) -> None:
    """Guarantee 6: by token and by barrier, each thread its own key, all partitions and two topics at a time."""
    first_topic, second_topic = topics.create(3), topics.create(2)
    store = open_store(first_topic, second_topic)
    wrong: list[object] = []

    def work(thread: int, writers: list[DirectoryWriter[dict[str, Any]]]) -> None:
        for number in range(15):
            written = {"thread": thread, "number": number}
            tokens = [writer.put(f"k{thread}", written) for writer in writers]
            if number % 2:
                store.wait_for(*tokens, timeout=30)
            else:
                store.barrier(timeout=30)
            read = [store[name].get(f"k{thread}") for name in (first_topic, second_topic)]
            wrong.extend(value for value in read if value != written)

    with (
        DirectoryWriter(topics.address, Directory(first_topic, writable=True)) as first,
        DirectoryWriter(topics.address, Directory(second_topic, writable=True)) as second,
    ):
        threads = [threading.Thread(target=work, args=(thread, [first, second])) for thread in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong
    assert {len(store[first_topic]), len(store[second_topic])} == {6}


@pytest.mark.parametrize("ending", ["death", "close"])
def test_waiters_are_woken_by_death_and_close(
    topics: Topics, open_store: Opener, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Guarantee 7: nobody waits out a time-out for a reader that is gone; the cause is kept."""
    name = topics.create()
    topics.produce(name, ("a", '{"n":1}'))
    store = open_store(name)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            store.wait_for(Token(name, 0, 1000), timeout=60)
        except CompactoryError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    if ending == "close":
        store.close()
    else:
        monkeypatch.setattr(store._reader, "_step", lambda consumer: 1 / 0)
    waiter.join(10)
    (error,) = caught
    if ending == "close":
        assert isinstance(error, StoreClosed)
        with pytest.raises(StoreClosed):
            store[name].get("a")
        return
    assert isinstance(error, StoreFailed)
    assert isinstance(error.cause, ZeroDivisionError)
    assert store.state is StoreState.FAILED
    assert not store.ready
    assert isinstance(store.failure, ZeroDivisionError)
    assert store[name]["a"] == {"n": 1}
    with pytest.raises(StoreFailed):
        store.barrier()


def test_close_wakes_a_start_that_waits(topics: Topics, kafka: str) -> None:
    """Guarantee 7."""
    name = topics.create()
    with topics.transaction() as producer:
        send(producer, name, [("a", "{}")])
        store = GlobalStore(kafka, [name])
        caught: list[BaseException] = []

        def start() -> None:
            try:
                store.start()
            except CompactoryError as error:
                caught.append(error)

        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        eventually(store.positions)
        store.close()
        starting.join(10)
        producer.abort_transaction(10)
    assert isinstance(caught[0], StoreClosed)
    assert store.state is StoreState.CLOSED


def test_before_start_nothing_is_answered() -> None:
    """Guarantee 1: not ready is an error, never "absent"."""
    store = GlobalStore("127.0.0.1:1", ["d"])
    view = store["d"]
    for read in (lambda: view["a"], lambda: view.get("a"), lambda: len(view), lambda: list(view), lambda: "a" in view):
        with pytest.raises(NotReady):
            read()
    with pytest.raises(NotReady):
        store.wait_for(Token("d", 0, 0))
    with pytest.raises(NotReady):
        store.barrier()
    assert store.positions() == store.lag() == {}
    store.close()
    with pytest.raises(StoreClosed):
        view.get("a")
