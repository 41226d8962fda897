"""Coroutines that wait until a store has read far enough, without a thread each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from compactory.loading import missing_offsets, wait_timeout
from compactory.records import Partition, StoreState
from compactory.store import GlobalStore

__all__ = ["Waiting"]


@dataclass(slots=True, eq=False)
class _Waiter:
    """A coroutine that waits until every position is at its target or after it."""

    targets: Mapping[Partition, int]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    future: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def is_satisfied(self, positions: Mapping[Partition, int]) -> bool:
        for partition, target in self.targets.items():  # noqa: SIM110 (checked after each batch: a loop is quicker)
            if positions.get(partition, -1) < target:
                return False
        return True


class Waiting:
    """The coroutines that wait for one store, in any number of event loops. Thread-safe.

    It listens to the store only while it has waiters. The store's threads find the waiters that are satisfied (a
    thousand waiters cost about half a millisecond a batch), and wake their event loops.
    """

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._waiters: set[_Waiter] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._changing = Lock()  # guards all of the above

    def __len__(self) -> int:
        return len(self._waiters)

    async def until(self, targets: Mapping[Partition, int], timeout: float, awaited: str) -> None:
        """Wait until every position is at its target or after it.

        Raises WaitTimeout with the gap, StoreFailed when the reader has died, StoreClosed, NotReady before ``start``.
        """
        self._store.wait_for(timeout=0)
        if not self.gap(targets):
            return
        waiter = _Waiter(targets)
        with self._changing:
            self._waiters.add(waiter)
            if self._unsubscribe is None:
                self._unsubscribe = self._store.subscribe(self._wake_satisfied)
        if self._has_ended() or not self.gap(targets):  # only now: the listener sees what changes after this check
            _wake([waiter.future])
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            raise wait_timeout(awaited, timeout, self.gap(targets)) from None
        finally:
            with self._changing:
                self._remove([waiter])
        if self.gap(targets):
            self._store.wait_for(timeout=0)  # says why: each waiter raises an error of its own

    def end(self, error: Callable[[], Exception]) -> None:
        """End every wait of the running loop with an error that ``error`` makes."""
        for waiter in list(self._waiters):
            if waiter.loop is asyncio.get_running_loop() and not waiter.future.done():
                waiter.future.set_exception(error())

    def gap(self, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return how many offsets are missing in each partition that is not at its target yet."""
        return missing_offsets(self._store.positions(), targets)

    def _remove(self, waiters: Iterable[_Waiter]) -> None:
        self._waiters.difference_update(waiters)
        if not self._waiters and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _wake_satisfied(self) -> None:
        """Wake the waiters that are satisfied; all of them once the store has ended. In the store's threads."""
        with self._changing:
            has_ended, positions = self._has_ended(), self._store.positions()
            woken = [
                waiter
                for waiter in self._waiters
                if has_ended or waiter.loop.is_closed() or waiter.is_satisfied(positions)
            ]
            self._remove(woken)
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
        for waiter in woken:
            by_loop[waiter.loop].append(waiter.future)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_wake, futures)

    def _has_ended(self) -> bool:
        return self._store.state in (StoreState.FAILED, StoreState.CLOSED)


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
