"""Limits of a server on its clients: sizes, times, connections, memory and threads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from .problem import Overloaded

T = TypeVar("T")

HEAD_BYTES = 64 << 10  # of a request's line and headers together
HEADERS = 200  # lines
REQUEST_BYTES = 16 << 20  # of a whole request as it is sent
BULK_LINES = 10_000  # of one bulk write; the project's client sends as many
REQUEST_SECONDS = 30.0  # from the first byte of a request to its last
IDLE_SECONDS = 75.0  # between requests. More than the 60 of load balancers, which may use a connection as it closes
ANSWER_SECONDS = 30.0  # in which a client must read some of its answer
IN_FLIGHT_BYTES = 256 << 20  # of request bodies in memory and of answers that clients have not read
HELD_BYTES = "compactory.held_bytes"  # where the ASGI scope has the `HeldBytes` of a request

_READ_THREADS = 6  # Python runs one at a time; the others wait for a disk
_WAIT_THREADS = 8


def _most_connections() -> int:
    """Return half of the number of files that the process may open: Kafka and RocksDB need the other half."""
    if sys.platform == "win32":
        return 4096
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if files == resource.RLIM_INFINITY else min(4096, files // 2)


MOST_CONNECTIONS = _most_connections()
MOST_WATCHERS = MOST_CONNECTIONS // 2  # each is a connection; lookups need the others


class Budget:
    """Counts the bytes of request bodies in memory, and of answers that clients have not read yet.

    Owned by the event loop. ``is_full``: True while new requests are refused, except those for probes and metrics.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self.is_full = False

    def add(self, size: int) -> None:
        """Count ``size`` bytes that are in memory already; a negative size releases bytes."""
        self.used_bytes += size
        self.is_full = self.used_bytes >= IN_FLIGHT_BYTES

    def check(self, size: int = 0) -> None:
        """Raise Overloaded if the budget is full, or has no room for ``size`` bytes."""
        if self.is_full or self.used_bytes + size > IN_FLIGHT_BYTES:
            raise Overloaded(
                f"requests under way and answers that nobody has read take {self.used_bytes >> 20} of"
                f" {IN_FLIGHT_BYTES >> 20} MiB; ask again, or another server"
            )


class HeldBytes:
    """The bytes of one request or connection in the budget. Use it in a ``with`` block, or release it by ``set(0)``."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.set(0)

    def grow(self, size: int) -> None:
        """Add ``size`` bytes. Raises Overloaded."""
        self._budget.check(size)
        self.set(self.size + size)

    def set(self, size: int) -> None:
        """Replace the number of bytes, also if the budget has no room for them."""
        self._budget.add(size - self.size)
        self.size = size


class ThreadGroup:
    """A few threads, and a queue whose limit is the server's number of connections. Owned by the event loop."""

    def __init__(self, name: str, number: int) -> None:
        self.executor = ThreadPoolExecutor(number, f"compactory-{name}")
        self._calls = 0

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread and return its result. Raises its errors, and Overloaded if the queue is full.

        A call goes on after its client has gone, so such calls count too.
        """
        if self._calls >= MOST_CONNECTIONS:
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
