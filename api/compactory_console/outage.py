"""Outages of Postgres and Kafka: both are asked every second, so that no page waits for a time-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from compactory.errors import CompactoryError, Unreachable

__all__ = ["OutsideServer"]

R = TypeVar("R")

_SECONDS = 1.0  # between two questions


class OutsideServer:
    """Postgres or Kafka, reached or not. Owned by one event loop.

    ``ask`` asks the server and raises CompactoryError if it does not answer. ``on_change`` is called after a change.
    """

    def __init__(self, name: str, address: str, ask: Callable[[], Awaitable[object]]) -> None:
        self.name = name
        self.address = address
        self.error: str | None = None
        self.since = time.time()
        """When the server was first seen as it is now, in seconds since 1970."""
        self._ask = ask
        self._is_lost = asyncio.Event()

    async def follow(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Ask until cancelled."""
        while True:
            try:
                await self._ask()
                error = None
            except CompactoryError as failure:
                error = str(failure)
            has_changed = (self.error is None) is not (error is None)
            self.error = error
            if has_changed:
                self.since = time.time()
                (self._is_lost.clear if error is None else self._is_lost.set)()
                await on_change()
            await asyncio.sleep(_SECONDS)

    async def result(self, call: Callable[[], Awaitable[R]]) -> R:
        """Return the result of a call to the server. Raises Unreachable as soon as the server is not reached."""
        if not self._is_lost.is_set():
            running, lost = asyncio.ensure_future(call()), asyncio.create_task(self._is_lost.wait())
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
            lost.cancel()
            if running.done():
                return running.result()
            running.add_done_callback(_ignore_error)
        raise Unreachable(self.name, f"{self.name} is not reached: {self.error}")


def _ignore_error(task: asyncio.Future[R]) -> None:
    if not task.cancelled():
        task.exception()
