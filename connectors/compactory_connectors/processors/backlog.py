"""`Backlog`: the unfinished events of a process, and which of them may run. Pure."""

from __future__ import annotations

import heapq
import itertools
import time
from bisect import insort
from collections.abc import Iterable
from typing import Any

from .pending import StoredEvent, Task

__all__ = ["Backlog"]

_SOON = 0.05  # seconds until an event that could not start is tried again


class Backlog:
    """Events by key, in the order of offsets. The first event of each key runs. Events without a key do not wait.

    Owned by one thread. Waiting events cost nothing when the next events are taken.
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self.tasks: dict[str, Task] = {}
        """By id of the event."""
        self.bytes = 0
        """The size of all values."""
        self._keys: dict[Any, list[Task]] = {}
        self._busy: set[Any] = set()  # keys of which an event runs
        self._due: list[tuple[float, int, Any]] = []  # a heap: when the first event of a key may run
        self._numbers = itertools.count()
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> bool:
        """Add an event. Return False if it was added before."""
        if task.stored.id in self.tasks:
            return False
        key = _key_of(task.stored)
        tasks = self._keys.setdefault(key, [])
        insort(tasks, task, key=_offset_of)
        self.tasks[task.stored.id] = task
        self.bytes += task.size
        if task.running:
            self._busy.add(key)
        elif tasks[0] is task:
            self._schedule(key, task.stored.due)
        return True

    def take(self, limit: int) -> list[Task]:
        """Return up to ``limit`` events that may run, longest due first, and mark them as running."""
        due: list[Task] = []
        clock = time.time()
        while self._due and self._due[0][0] <= clock and len(due) < limit:
            key = heapq.heappop(self._due)[2]
            if key in self._busy or key not in self._keys:
                continue
            task = self._keys[key][0]
            if task.stored.due > clock:
                self._schedule(key, task.stored.due)
                continue
            task.running = True
            self._busy.add(key)
            due.append(task)
        return due

    def is_due(self) -> bool:
        """Return True if there may be an event that may run now."""
        return bool(self._due) and self._due[0][0] <= time.time()

    def put_back(self, task: Task, *, soon: bool = False) -> None:
        """Mark an event as not running. It runs again when it is due, or ``soon``."""
        task.running = False
        key = _key_of(task.stored)
        self._busy.discard(key)
        self._schedule(key, time.time() + _SOON if soon else self._keys[key][0].stored.due)

    def remove(self, task: Task) -> None:
        """Remove a finished or failed event. The next event of its key may run."""
        del self.tasks[task.stored.id]
        self.bytes -= task.size
        key = _key_of(task.stored)
        tasks = self._keys[key]
        tasks.remove(task)
        if task.running:
            self._busy.discard(key)
        if tasks:
            self._schedule(key, tasks[0].stored.due)
        else:
            del self._keys[key]

    def _schedule(self, key: Any, due: float) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), key))


def _key_of(stored: StoredEvent) -> Any:
    return stored.partition, stored.key, stored.offset if stored.key is None else None


def _offset_of(task: Task) -> int:
    return task.stored.offset
