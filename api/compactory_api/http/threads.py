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

_READ_THREADS = 6  # Python runs one at a time; the others wait for a disk
_WAIT_THREADS = 8


class ThreadGroup:
    """A few threads, and a queue whose limit is the server's number of connections. Owned by the event loop."""

    def __init__(self, name: str, number: int) -> None:
        self.executor = ThreadPoolExecutor(number, f"compactory-{name}")
        self._calls = 0

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread and return its result. Raises its errors, and Overloaded if the queue is full.

        A call goes on after its client has gone, so such calls count too.
        """
        if self._calls >= limits.MOST_CONNECTIONS:
            raise Overloaded(f"{self._calls} requests wait for the same threads; ask again, or another server")
        call = asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)
        self._calls += 1
        call.add_done_callback(self._count_end)
        return await call

    def _count_end(self, _call: asyncio.Future[T]) -> None:
        self._calls -= 1


class Threads:
    """Groups of threads that do not wait for each other. Threads are started as they are needed.

    ``reads``    batches and lists: the store's memory or disk
    ``waits``    calls that wait for Kafka, or for the store's reader thread
    ``metrics``  metrics of the process
    """

    def __init__(self) -> None:
        self.reads = ThreadGroup("read", _READ_THREADS)
        self.waits = ThreadGroup("wait", _WAIT_THREADS)
        self.metrics = ThreadGroup("metrics", 1)

    def close(self) -> None:
        """End each thread after the call that it runs. Idempotent; any thread may call it."""
        for group in (self.reads, self.waits, self.metrics):
            group.executor.shutdown(wait=False, cancel_futures=True)
