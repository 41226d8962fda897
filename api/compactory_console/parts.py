"""The parts of a console that its pages use."""

from __future__ import annotations

import asyncio

from .changes import Changes
from .job_counts import JobCounts
from .operators import Operators
from .options import ConsoleOptions
from .processes import Processes
from .rendering import Pages

__all__ = ["Parts"]


class Parts:
    """Processes, feeds, operators' functions and templates of a console. Owned by one event loop."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.pages = Pages(options)
        self.servers = Processes(options.servers, options.token)
        self.operators = Operators(options)
        self.job_counts = JobCounts(self.operators)
        self.overview_contents: dict[object, tuple[int, bytes]] = {}
        """The newest content of the overview by the rights of visitors, each with its version."""
        self._changes: Changes | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def changes(self) -> Changes:
        """The feeds of the directories, once the parts have started."""
        assert self._changes is not None
        return self._changes

    def start(self) -> None:
        """Begin to ask the processes, the database and the cluster. Idempotent; runs in the event loop."""
        if self._changes is not None:
            return
        self._changes = Changes(self.servers)
        self.servers.start()
        follows = [server.follow(self.servers.announce) for server in self.operators.servers]
        if self.options.postgres is not None:
            follows.append(self.job_counts.follow())
        self._tasks = [asyncio.create_task(follow) for follow in follows]

    async def close(self) -> None:
        """End what asks, and the threads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._changes is not None:
            await self._changes.close()
            await self.servers.close()
        self.operators.close()
