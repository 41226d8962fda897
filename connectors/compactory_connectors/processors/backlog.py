"""`Backlog`: the events of a process that are not done, and which of them may run. Pure."""

from __future__ import annotations

import heapq
import itertools
import time
from bisect import insort
from collections.abc import Iterable
from typing import Any

from .pending import Parked, Task

__all__ = ["Backlog"]

_SOON = 0.05  # seconds until an event is looked at again that could not begin


class Backlog:
    """Events by key, in the order of offsets: of each key the first one runs. Those without a key wait for no other.

    Owned by one thread. Finding the next events costs nothing for those that wait.
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self.tasks: dict[str, Task] = {}
        """By the id of the event."""
        self.bytes = 0
        """The sizes of all their values."""
        self._keys: dict[Any, list[Task]] = {}
        self._busy: set[Any] = set()  # keys of which an event runs
        self._due: list[tuple[float, int, Any]] = []  # a heap: when the first event of a key may run
        self._numbers = itertools.count()
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> bool:
        """Take an event up, unless it is there. Return True if it is new."""
        if task.parked.id in self.tasks:
            return False
        key = _key_of(task.parked)
        tasks = self._keys.setdefault(key, [])
        insort(tasks, task, key=_offset_of)
        self.tasks[task.parked.id] = task
        self.bytes += task.size
        if task.running:
            self._busy.add(key)
        elif tasks[0] is task:
            self._schedule(key, task.parked.due)
        return True

    def take(self, limit: int) -> list[Task]:
        """Return up to ``limit`` events that may run now, longest due first; they are running from now on."""
        taken: list[Task] = []
        now = time.time()
        while self._due and self._due[0][0] <= now and len(taken) < limit:
            key = heapq.heappop(self._due)[2]
            if key in self._busy or key not in self._keys:
                continue
            task = self._keys[key][0]
            if task.parked.due > now:
                self._schedule(key, task.parked.due)
                continue
            task.running = True
            self._busy.add(key)
            taken.append(task)
        return taken

    def is_due(self) -> bool:
        """Return True if there may be an event that may run now."""
        return bool(self._due) and self._due[0][0] <= time.time()

    def put_back(self, task: Task, *, soon: bool = False) -> None:
        """Let an event that ran wait until it is due, or for a moment (``soon``)."""
        task.running = False
        key = _key_of(task.parked)
        self._busy.discard(key)
        self._schedule(key, time.time() + _SOON if soon else self._keys[key][0].parked.due)

    def remove(self, task: Task) -> None:
        """Forget an event that is done or set aside; the next one of its key may run."""
        del self.tasks[task.parked.id]
        self.bytes -= task.size
        key = _key_of(task.parked)
        tasks = self._keys[key]
        tasks.remove(task)
        if task.running:
            self._busy.discard(key)
        if tasks:
            self._schedule(key, tasks[0].parked.due)
        else:
            del self._keys[key]

    def _schedule(self, key: Any, due: float) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), key))


def _key_of(parked: Parked) -> Any:
    return parked.partition, parked.key, parked.offset if parked.key is None else None


def _offset_of(task: Task) -> int:
    return task.parked.offset
