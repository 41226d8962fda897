"""The parts of a console that its pages use."""

from __future__ import annotations

from .changes import Changes
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
        self._changes: Changes | None = None

    @property
    def changes(self) -> Changes:
        """The feeds of the directories, once the parts have started."""
        assert self._changes is not None
        return self._changes

    def start(self) -> None:
        """Begin to ask the processes. Idempotent; runs in the event loop."""
        if self._changes is None:
            self._changes = Changes(self.servers)
            self.servers.start()

    async def close(self) -> None:
        """End what asks the processes, and the threads."""
        if self._changes is not None:
            await self._changes.close()
            await self.servers.close()
        self.operators.close()
