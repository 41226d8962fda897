"""The threads of a server for work that would block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["Threads", "in_thread"]

T = TypeVar("T")

_READS = 6  # Python runs one at a time; the others wait for a disk
_WAITS = 8


async def in_thread(threads: Executor, work: Callable[..., T], *values: object) -> T:
    """Return what ``work`` returns for the values, called in one of the threads. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(threads, work, *values)


class Threads:
    """Groups of threads that do not wait for each other. Thread-safe; threads are started as they are needed.

    ``reads``    batches and lists: the store's memory or disk
    ``waits``    whatever waits for Kafka, or for the thread that reads it
    ``metrics``  the figures of the process
    """

    def __init__(self) -> None:
        self.reads = ThreadPoolExecutor(_READS, "compactory-read")
        self.waits = ThreadPoolExecutor(_WAITS, "compactory-wait")
        self.metrics = ThreadPoolExecutor(1, "compactory-metrics")

    def close(self) -> None:
        """End the threads; those at work end with it. Idempotent."""
        for threads in (self.reads, self.waits, self.metrics):
            threads.shutdown(wait=False, cancel_futures=True)
