"""Coroutines that wait for a store to get further, without a thread each.

The store's threads find the waiters that are satisfied, and wake the event loops that have them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from compactory.ingest.loading import lacking, too_late
from compactory.records import Partition, StoreState
from compactory.store import GlobalStore

__all__ = ["Waiting"]


@dataclass(slots=True, eq=False)
class _Waiter:
    targets: Mapping[Partition, int]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    future: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def is_due(self, positions: Mapping[Partition, int]) -> bool:
        """Say whether it has waited long enough; also where its loop is closed, and its coroutine never goes on."""
        return self.loop.is_closed() or all(positions.get(part, -1) >= end for part, end in self.targets.items())


class Waiting:
    """The coroutines that wait for one store, in any number of event loops. Thread-safe.

    It listens to the store only while it has waiters.
    """

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._waiters: set[_Waiter] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._changing = Lock()  # guards the two above

    def __len__(self) -> int:
        return len(self._waiters)

    async def until(self, targets: Mapping[Partition, int], timeout: float, what: str) -> None:
        """Wait until every position is at or beyond its target.

        Raises WaitTimeout with the gap, StoreFailed when the reader has died, StoreClosed, NotReady before ``start``.
        """
        self._store.wait_for(timeout=0)
        if not self.gap(targets):
            return
        waiter = _Waiter(targets)
        self._enter(waiter)
        try:
            self._look()  # again: it may have moved before the waiter was known
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            raise too_late(what, timeout, self.gap(targets)) from None
        finally:
            self._leave({waiter})
        if self.gap(targets):
            self._store.wait_for(timeout=0)  # says why: each waiter raises an error of its own

    def end(self, error: Callable[[], Exception]) -> None:
        """End every wait of the running loop with an error that ``error`` makes."""
        running = asyncio.get_running_loop()
        for waiter in list(self._waiters):
            if waiter.loop is running and not waiter.future.done():
                waiter.future.set_exception(error())

    def gap(self, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return how many offsets are missing in each partition that is not there yet."""
        return lacking(self._store.positions(), targets)

    def _enter(self, waiter: _Waiter) -> None:
        with self._changing:
            self._waiters.add(waiter)
            if self._unsubscribe is None:
                self._unsubscribe = self._store.subscribe(self._look)

    def _leave(self, waiters: set[_Waiter]) -> None:
        with self._changing:
            self._waiters -= waiters
            if not self._waiters and self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None

    def _look(self) -> None:
        """Wake the waiters that are satisfied; all of them where the store has ended. By the store's threads."""
        positions = self._store.positions()
        ended = self._store.state in (StoreState.FAILED, StoreState.CLOSED)
        due = {waiter for waiter in list(self._waiters) if ended or waiter.is_due(positions)}
        if not due:
            return
        self._leave(due)
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
        for waiter in due:
            by_loop[waiter.loop].append(waiter.future)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(_wake, futures)


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
