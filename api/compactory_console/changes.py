"""The newest changes of each directory, as its server sends them: the history of entries, and live feeds.

A feed follows one directory of one server: connecting → following → connecting again after an error, from the last
change on. What was missed while the server kept it no more is told as a gap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx2
import orjson

from compactory.errors import CompactoryError

from .processes import Process, Processes, directory_path

__all__ = ["Change", "Changes", "Feed"]

_MOST_CHANGES = 1000
_MOST_BYTES = 2 << 20  # of a directory's changes
_MOST_WAITING = 200  # changes that a slow page may be behind
_PAUSE = 1.0  # seconds until a broken feed is connected again


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of an entry, with the old and the new value; or a gap, of which only ``gap`` is set."""

    kind: str
    key: str = ""
    old: Any = None
    new: Any = None
    partition: int = 0
    offset: int = 0
    timestamp_ms: int = -1
    gap: str | None = None

    @property
    def word(self) -> str:
        """``created``, ``changed`` or ``deleted``."""
        return "deleted" if self.kind == "delete" else "created" if self.old is None else "changed"


class Feed:
    """The newest changes of one directory, oldest first. Owned by the event loop."""

    def __init__(self, servers: Processes, server: Process, directory: str, topic: str) -> None:
        self.changes: deque[tuple[Change, int]] = deque()  # with the bytes of each
        self.count = 0
        """The changes so far, which is the number of the newest one."""
        self.error: str | None = None
        self.has_begun = False
        """True once the server has sent changes, or waits for some."""
        self._servers = servers
        self._server = server
        self._path = f"{directory_path(directory)}/watch"
        self._cursor = _earlier_cursor(server.partitions(topic))
        self._bytes = 0
        self._pages: set[asyncio.Queue[tuple[int, Change]]] = set()
        self.task = asyncio.create_task(self._run())

    def of_key(self, key: str) -> list[Change]:
        """Return the changes of an entry, newest first."""
        return [change for change, _ in reversed(self.changes) if change.key == key and change.gap is None]

    def newest(self, limit: int) -> list[Change]:
        """Return the newest changes, newest first."""
        return [change for change, _ in list(self.changes)[-limit:]][::-1]

    @asynccontextmanager
    async def followed(self, after: int) -> AsyncIterator[asyncio.Queue[tuple[int, Change]]]:
        """Yield a queue that gets each change with a higher number; the oldest of a full queue are dropped."""
        queue: asyncio.Queue[tuple[int, Change]] = asyncio.Queue(_MOST_WAITING)
        numbered = enumerate((change for change, _ in self.changes), self.count - len(self.changes) + 1)
        for item in [item for item in numbered if item[0] > after][-_MOST_WAITING:]:
            queue.put_nowait(item)
        self._pages.add(queue)
        try:
            yield queue
        finally:
            self._pages.discard(queue)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except (CompactoryError, httpx2.HTTPStatusError, ValueError) as error:
                self.error = f"{self._server.url}: {error}"
            await asyncio.sleep(_PAUSE)

    async def _follow(self) -> None:
        """Read events until the answer ends."""
        query = "" if self._cursor is None else "?" + urlencode({"since": self._cursor})
        async with self._servers.stream(self._server, self._path + query) as answer:
            if answer.status_code == 410:
                self._cursor = None
                if self.has_begun:
                    self._add(Change(kind="gap", gap="Changes were missed here."), 0)
                return
            answer.raise_for_status()
            self.error, self.has_begun = None, True
            event = cursor = ""
            async for line in answer.aiter_lines():
                name, _, text = line.partition(": ")
                if name == "event":
                    event = text
                elif name == "id":
                    cursor = text
                elif name == "data" and event in ("put", "delete"):
                    self._add(Change(**orjson.loads(text)), len(text))
                elif not line and cursor:
                    self._cursor = cursor

    def _add(self, change: Change, size: int) -> None:
        self.changes.append((change, size))
        self.count += 1
        self._bytes += size
        while len(self.changes) > _MOST_CHANGES or self._bytes > _MOST_BYTES:
            self._bytes -= self.changes.popleft()[1]
        for queue in self._pages:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait((self.count, change))


class Changes:
    """The feeds of all directories that servers have shown. Owned by the event loop."""

    def __init__(self, servers: Processes) -> None:
        self._servers = servers
        self._feeds: dict[tuple[int, str], Feed] = {}
        servers.on_status(self._open)

    def feed(self, server: Process, directory: str) -> Feed | None:
        """Return the feed of a directory, or None before its server has shown the directory."""
        return self._feeds.get((server.number, directory))

    async def close(self) -> None:
        """End every feed."""
        for feed in self._feeds.values():
            feed.task.cancel()
        await asyncio.gather(*(feed.task for feed in self._feeds.values()), return_exceptions=True)

    def _open(self, server: Process) -> None:
        for directory in server.directories:
            place = (server.number, directory["name"])
            if place not in self._feeds and directory["entries"] is not None:
                self._feeds[place] = Feed(self._servers, server, directory["name"], directory["topic"])


def _earlier_cursor(partitions: list[dict[str, Any]]) -> str | None:
    """Return a cursor some records before the present one: a server that keeps changes then sends older ones."""
    if not partitions:
        return None
    places = ",".join(f"{item['partition']}:{max(0, (item['position'] or 0) - _MOST_CHANGES)}" for item in partitions)
    return f"{partitions[0]['topic_id']};{places}"
