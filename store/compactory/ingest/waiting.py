"""Coroutines that wait for a store to get further, without a thread each.

The store's threads notify the event loops that have waiters; each loop finds the waiters that are satisfied.
Facts about asyncio were checked on Python 3.11 to 3.13 and uvloop 0.23.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from compactory.errors import CompactoryError
from compactory.ingest.loading import lacking, too_late
from compactory.records import Partition

__all__ = ["Waiting", "Watched"]


class Watched(Protocol):
    """The part of a GlobalStore that this module needs."""

    def positions(self) -> dict[Partition, int]:
        """Return the next offset to read of every partition."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change; return what ends that."""
        ...

    def wait_for(self, *, timeout: float) -> None:
        """Raise the error that ended the store, or NotReady."""
        ...


@dataclass(slots=True, eq=False)
class _Waiter:
    targets: Mapping[Partition, int]
    future: asyncio.Future[None]


class Waiting:
    """The coroutines that wait for one store, in any number of event loops. Thread-safe.

    It listens to the store only while it has waiters. A loop that is closed takes its waiters with it.
    """

    def __init__(self, store: Watched) -> None:
        self._store = store
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._changing = Lock()  # guards _loops; never held while the store is called

    def __len__(self) -> int:
        return sum(len(loop.waiters) for loop in list(self._loops.values()))

    async def until(self, targets: Mapping[Partition, int], timeout: float, what: str) -> None:
        """Wait until every position is at or beyond its target.

        Raises WaitTimeout with the gap, StoreFailed when the reader has died, StoreClosed, NotReady before ``start``.
        """
        self._store.wait_for(timeout=0)
        if not self.gap(targets):
            return
        running = asyncio.get_running_loop()
        waiter = _Waiter(targets, running.create_future())
        loop = self._enter(running, waiter)
        try:
            loop.look()  # again: it may have moved before the waiter was known
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            raise too_late(what, timeout, self.gap(targets)) from None
        finally:
            self._leave(loop, waiter)
        if self.gap(targets):
            self._store.wait_for(timeout=0)  # says why: each waiter raises an error of its own

    def end(self, error: Callable[[], Exception]) -> None:
        """End every wait of the running loop with an error that ``error`` makes."""
        loop = self._loops.get(asyncio.get_running_loop())
        for waiter in list(loop.waiters) if loop is not None else ():
            if not waiter.future.done():
                waiter.future.set_exception(error())

    def gap(self, targets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return how many offsets are missing in each partition that is not there yet."""
        return lacking(self._store.positions(), targets)

    def _enter(self, running: asyncio.AbstractEventLoop, waiter: _Waiter) -> _Loop:
        with self._changing:
            loop = self._loops.get(running)
            if loop is None:
                loop = self._loops[running] = _Loop(self._store, running, self._drop)
            loop.waiters.add(waiter)
        loop.listen()
        return loop

    def _leave(self, loop: _Loop, waiter: _Waiter) -> None:
        with self._changing:
            loop.waiters.discard(waiter)
            last = not loop.waiters and self._loops.get(loop.running) is loop
            if last:
                del self._loops[loop.running]
        if last:
            loop.stop_listening()

    def _drop(self, loop: _Loop) -> None:
        """Let go of a loop that is closed: its coroutines never go on."""
        with self._changing:
            if self._loops.get(loop.running) is loop:
                del self._loops[loop.running]
        loop.stop_listening()


class _Loop:
    """The waiters of one event loop. They belong to the loop's thread; `notify` is for the store's."""

    def __init__(self, store: Watched, running: asyncio.AbstractEventLoop, on_closed: Callable[[_Loop], None]) -> None:
        self.running = running
        self.waiters: set[_Waiter] = set()
        self._store = store
        self._on_closed = on_closed
        self._notified = False
        self._unsubscribe: Callable[[], None] | None = None

    def listen(self) -> None:
        """Listen to the store's changes from now on."""
        if self._unsubscribe is None:
            self._unsubscribe = self._store.subscribe(self.notify)

    def stop_listening(self) -> None:
        """Stop listening."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def notify(self) -> None:
        """Have the loop look, once for any number of changes."""
        if self._notified:
            return
        self._notified = True
        try:
            self.running.call_soon_threadsafe(self.look)
        except RuntimeError:  # the loop is closed, and its waiters are gone
            self._on_closed(self)

    def look(self) -> None:
        """Wake the waiters that are satisfied; all of them where the store has ended."""
        self._notified = False  # before the look, so that a change during it notifies again
        positions = self._store.positions()
        ended = self._has_ended()
        for waiter in self.waiters:
            reached = ended or all(positions.get(place, -1) >= target for place, target in waiter.targets.items())
            if reached and not waiter.future.done():
                waiter.future.set_result(None)

    def _has_ended(self) -> bool:
        try:
            self._store.wait_for(timeout=0)
        except CompactoryError:
            return True
        return False
