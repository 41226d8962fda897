"""Guarantee 7: handlers of signals close stores, whatever the main thread is at."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compactory import AsyncGlobalStore, Directory, Memory, StoreClosed, StoreFailed, StoreState, testing


@pytest.fixture
def on_term() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what SIGTERM calls in the main thread, as a service would."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, lambda *_: handler()) and None
    signal.signal(signal.SIGTERM, before)


def term() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def of_store() -> set[str]:
    return {
        thread.name for thread in threading.enumerate() if thread.name in ("compactory-reader", "compactory-discovery")
    }


def test_a_handler_that_closes_during_a_close(on_term: Callable[[Any], None]) -> None:
    """The same thread closes twice, one inside the other."""

    class Slow(Memory):
        def close(self) -> None:
            term()
            for _ in range(1000):  # the handler runs between two of its steps
                pass

    store = testing.store({"d": {"a": {}}}, backend=Slow())
    handled: list[StoreState] = []
    on_term(lambda: (store.close(), handled.append(store.state)))
    store.close()
    assert handled == [StoreState.CLOSED]
    assert not of_store()


def test_a_handler_that_closes_while_the_main_thread_waits(on_term: Callable[[Any], None]) -> None:
    store = testing.store({"d": {"a": {}}})
    store.become_stale("d")
    on_term(store.close)
    timer = threading.Timer(0.2, term)  # while the main thread is inside the wait
    timer.start()
    with pytest.raises(StoreClosed):
        store.wait_for(store.put("d", "b", {}), timeout=60)
    timer.join()
    assert not of_store()


def test_a_handler_that_exits_while_the_store_starts(on_term: Callable[[Any], None]) -> None:
    """The start gives up all that it has opened."""
    told = threading.Event()

    def decode(_value: bytes) -> None:
        if not told.is_set():
            told.set()
            term()

    def start() -> None:
        store.start()
        threading.Event().wait(10)  # where it was ready before the signal came

    store = testing.store({Directory("d", decode=decode): {}}, start=False)
    store._cluster.append("d", "a", b"{}", 1)
    on_term(lambda: sys.exit(3))
    with pytest.raises(SystemExit):
        start()
    store.close()
    assert not of_store()


def test_a_start_that_was_interrupted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_began: float) -> None:
        raise KeyboardInterrupt

    store = testing.store({"d": {}}, start=False)
    monkeypatch.setattr(store._engine, "load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.start()
    with pytest.raises(StoreFailed, match="the store failed: KeyboardInterrupt"):
        store.start()
    store.close()


def test_a_cell_of_a_notebook_that_is_run_again() -> None:
    """A loop runs in the main thread there: both kinds of stores work in it; those of the former run end."""

    async def cell() -> tuple[Any, Any]:
        plain = testing.store({"d": {"a": {"n": 1}}})
        awaited = AsyncGlobalStore.of(testing.store({"d": {"a": {"n": 2}}}, start=False))
        await awaited.start()
        assert (plain["d"]["a"]["n"], awaited["d"]["a"]["n"]) == (1, 2)
        return plain, awaited

    async def notebook() -> None:
        found = await cell()
        found = await cell()
        found[0].close()
        await found[1].close()

    asyncio.run(notebook())
    for thread in threading.enumerate():
        if thread.name.startswith("compactory-"):
            thread.join(10)
    assert not of_store()
