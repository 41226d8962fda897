"""The threads of a server for work that would block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from . import limits
from .errors import Overloaded

__all__ = ["ThreadGroup", "Threads"]

T = TypeVar("T")

_READS = 6  # Python runs one at a time; the others wait for a disk
_WAITS = 8


class ThreadGroup:
    """A few threads, and a queue of at most as many calls as a server has connections. Owned by the event loop."""

    def __init__(self, name: str, number: int) -> None:
        self.executor = ThreadPoolExecutor(number, f"compactory-{name}")
        self._calls = 0

    async def run(self, work: Callable[..., T], *values: object) -> T:
        """Return what ``work`` returns for the values, called in a thread. Raises what it raises, or Overloaded.

        Work goes on although its client has gone, so calls of clients that are gone may fill the queue.
        """
        if self._calls >= limits.MOST_CONNECTIONS:
            raise Overloaded(f"{self._calls} requests wait for the same threads; ask again, or another server")
        call = asyncio.get_running_loop().run_in_executor(self.executor, work, *values)
        self._calls += 1
        call.add_done_callback(self._end)
        return await call

    def _end(self, _call: asyncio.Future[T]) -> None:
        self._calls -= 1


class Threads:
    """Groups of threads that do not wait for each other. Threads are started as they are needed.

    ``reads``    batches and lists: the store's memory or disk
    ``waits``    whatever waits for Kafka, or for the thread that reads it
    ``metrics``  the figures of the process
    """

    def __init__(self) -> None:
        self.reads = ThreadGroup("read", _READS)
        self.waits = ThreadGroup("wait", _WAITS)
        self.metrics = ThreadGroup("metrics", 1)

    def close(self) -> None:
        """End the threads; those at work end with it. Idempotent, for any thread."""
        for group in (self.reads, self.waits, self.metrics):
            group.executor.shutdown(wait=False, cancel_futures=True)
