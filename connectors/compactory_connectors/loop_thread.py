"""`LoopThread`: the event loop on which coroutines of handlers run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["LoopThread"]

R = TypeVar("R")

_ENDING = 2.0  # seconds that cancelled coroutines may take


class LoopThread:
    """A thread with an event loop. Thread-safe; start it once.

    All coroutines run on this loop, so that clients they share (aiohttp, asyncpg) go on working from one call to the
    next.
    """

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop  # made by start()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        """Start a coroutine; return the future of its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def wait_for(self, awaitable: Awaitable[R]) -> R:
        """Run an awaitable and return its result, or raise its error. Must not be called on the loop itself."""
        return self.submit(_awaited(awaitable)).result()

    def stop(self) -> None:
        """Cancel the coroutines that still run, and end the thread: a call that blocks the loop is abandoned."""
        if not self._thread.is_alive():
            return
        with suppress(Exception):  # of a coroutine that ends badly, or not in time
            self.submit(_cancel_all()).result(_ENDING)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDING)

    def _run(self) -> None:
        while self._is_interrupted():
            pass
        self._loop.close()

    def _is_interrupted(self) -> bool:
        """Run the loop until it is stopped; True if a coroutine ended it, by sys.exit say: that call has failed."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            return True
        return False


async def _awaited(awaitable: Awaitable[R]) -> R:
    return await awaitable


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
