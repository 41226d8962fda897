"""What is measured of a queue whose worker is a coroutine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from statistics import quantiles
from typing import Any


class Calls:
    """Counts the calls of a handler, in the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self.awaited = 0
        self.reached = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        if self.count == self.awaited:
            self.reached.set()

    def expect(self, calls: int) -> None:
        self.awaited = self.count + calls
        self.reached.clear()


async def figures(
    calls: Calls,
    jobs: int,
    samples: int,
    enqueue: Callable[[int], Awaitable[Any]],
    worker: Callable[[], Awaitable[Any]],
) -> dict[str, float]:
    """Return jobs/s of a worker that starts and of one that runs already, and milliseconds from enqueue to handler."""
    await enqueue(jobs)
    calls.expect(jobs)
    began = time.perf_counter()
    running = asyncio.ensure_future(worker())
    await calls.reached.wait()
    rate = jobs / (time.perf_counter() - began)
    await asyncio.sleep(1.0)
    calls.expect(jobs)
    await enqueue(jobs)
    began = time.perf_counter()
    await calls.reached.wait()
    running_rate = jobs / (time.perf_counter() - began)
    await asyncio.sleep(1.0)
    milliseconds: list[float] = []
    for _ in range(samples):
        calls.expect(1)
        began = time.perf_counter()
        await enqueue(1)
        await calls.reached.wait()
        milliseconds.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    cuts = quantiles(milliseconds, n=100)
    return {"rate": rate, "running_rate": running_rate, "p50_ms": cuts[49], "p99_ms": cuts[98]}
