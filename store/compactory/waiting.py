"""Coroutines that wait for a store to get further, without a thread each.

The store's threads find the waiters that are satisfied, and wake the event loops that have them. They look only at
waiters whose offset was passed: thousands of others cost the reader nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from threading import Lock

from compactory.loading import missing_offsets, wait_timeout
from compactory.records import Partition, StoreState
from compactory.store import GlobalStore

__all__ = ["Waiting"]

_numbers = count()
_rank = attrgetter("rank")


@dataclass(slots=True, eq=False)
class _Waiter:
    """A coroutine that waits. It stands in the queue of one ``partition`` that is short of its target.

    ``rank`` is its target there and a number of its own. ``partition`` is None while it stands in no queue.
    """

    targets: Mapping[Partition, int]
    partition: Partition | None = None
    rank: tuple[int, int] = (0, 0)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    future: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()


class Waiting:
    """The coroutines that wait for one store, in any number of event loops. Thread-safe.

    It listens to the store only while it has waiters.
    """

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._waiters: dict[asyncio.AbstractEventLoop, set[_Waiter]] = {}
        self._queues: defaultdict[Partition, list[_Waiter]] = defaultdict(list)  # each in the order of ranks
        self._unsubscribe: Callable[[], None] | None = None
        self._changing = Lock()  # guards all of the above

    def __len__(self) -> int:
        return sum(map(len, self._waiters.values()))

    async def until(self, targets: Mapping[Partition, int], timeout: float, awaited: str) -> None:
        """Wait until every position is at or beyond its target.

        Raises WaitTimeout with the gap, StoreFailed when the reader has died, StoreClosed, NotReady before ``start``.
        """
        self._store.wait_for(timeout=0)
        if not self.gap(targets):
            return
        waiter = _Waiter(targets)
        self._enter(waiter)
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
        for waiter in list(self._waiters.get(asyncio.get_running_loop(), ())):
            if not waiter.future.done():
                waiter.future.set_exception(error())

    def gap(self, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return how many offsets are missing in each partition that is not there yet."""
        return missing_offsets(self._store.positions(), targets)

    def _enter(self, waiter: _Waiter) -> None:
        with self._changing:
            self._waiters.setdefault(waiter.loop, set()).add(waiter)
            if self._unsubscribe is None:
                self._unsubscribe = self._store.subscribe(self._look)
            # only now: what moves after this look is told to the listener
            if self._ended() or not self._queue(waiter, self._store.positions()):
                waiter.future.set_result(None)

    def _queue(self, waiter: _Waiter, positions: Mapping[Partition, int]) -> bool:
        """Put a waiter into the queue of one partition that is short of its target. Return False if there is none."""
        waiter.partition = next((part for part, end in waiter.targets.items() if positions.get(part, -1) < end), None)
        if waiter.partition is None:
            return False
        waiter.rank = waiter.targets[waiter.partition], next(_numbers)
        insort(self._queues[waiter.partition], waiter, key=_rank)
        return True

    def _remove(self, waiters: Iterable[_Waiter]) -> None:
        """Forget waiters, wherever they stand; some may be gone already."""
        for waiter in waiters:
            if waiter.partition is not None:
                queue = self._queues[waiter.partition]
                del queue[bisect_left(queue, waiter.rank, key=_rank)]
                if not queue:
                    del self._queues[waiter.partition]
                waiter.partition = None
            waiters = self._waiters.get(waiter.loop, set())
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(waiter.loop, None)
        if not self._waiters and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _look(self) -> None:
        """Wake the waiters that are satisfied; all of them where the store has ended. By the store's threads."""
        with self._changing:
            ended = self._ended()
            due = [waiter for loop, waiters in self._waiters.items() if ended or loop.is_closed() for waiter in waiters]
            due += [] if ended else self._satisfied(self._store.positions())
            self._remove(due)
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
        for waiter in due:
            by_loop[waiter.loop].append(waiter.future)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(_wake, futures)

    def _satisfied(self, positions: Mapping[Partition, int]) -> list[_Waiter]:
        """Take the waiters whose offset was passed out of their queues; return those that wait for no other one."""
        passed: list[_Waiter] = []
        for partition, queue in self._queues.items():
            number = bisect_left(queue, (positions.get(partition, -1) + 1, 0), key=_rank)
            passed += queue[:number]
            del queue[:number]
        return [waiter for waiter in passed if not self._queue(waiter, positions)]

    def _ended(self) -> bool:
        return self._store.state in (StoreState.FAILED, StoreState.CLOSED)


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
