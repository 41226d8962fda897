"""The due jobs that are under limits, in queues: the jobs of a queue are under the same limits. Talks to no database.

A search finds which queues have due jobs. States of a queue in an executor:

    unknown → ready   a search has found jobs
    ready → ready     jobs were claimed, and there may be more
    ready → full      a limit lets no job start; the end of a job or of the window, or half a second makes it ready
    ready → unknown   there are no more jobs
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from compactory_connectors.postgres.position import Position

from .limits import JobLimit, LimitKey, Limits
from .rows import Chain

__all__ = ["LimitedBatch", "LimitedQueue", "LimitedQueues", "Room"]

_INTERVAL = 0.02  # seconds between searches; after an end other executors may claim first for so long
_LONGEST_WAIT = 0.5  # seconds of a full queue, in case that an executor dies before it notifies others of an end


class Room(NamedTuple):
    """The number of jobs that may start. ``next_due``: seconds to the end of a full window; None: no window is full."""

    jobs: int
    next_due: float | None

    @classmethod
    def smallest(cls, rooms: Iterable[Room]) -> Room:
        """Return the room under all of these limits."""
        rooms = list(rooms)
        waits = [room.next_due for room in rooms if room.next_due is not None]
        return cls(min(room.jobs for room in rooms), max(waits, default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedBatch:
    """The result of a claim from ``requested`` groups, else from the jobs of a queue up to position ``start``.

    ``may_have_more``: after that position. ``refused``: groups that another executor was claiming from.
    """

    start: int
    may_have_more: bool
    chains: list[Chain]
    requested: Sequence[str] = ()
    due_groups: Sequence[str] = ()
    refused: Collection[str] = ()


@dataclass(slots=True, kw_only=True)
class LimitedQueue:
    """A queue. Its jobs up to position ``start`` were read; those in ``groups`` are to be claimed."""

    key: LimitKey
    limits: Sequence[JobLimit]
    start: int
    may_have_more: bool = True
    groups: dict[str, None] = field(default_factory=dict)
    next_claim: float = 0.0  # by the monotonic clock

    def next_groups(self, count: int) -> list[str]:
        """Return up to ``count`` groups to claim from."""
        return list(islice(self.groups, count))

    def wait(self, seconds: float | None) -> None:
        """Claim after ``seconds``; None: after the end of a job."""
        self.next_claim = time.monotonic() + (_LONGEST_WAIT if seconds is None else seconds)


class LimitedQueues:
    """The queues of an executor that may have due jobs. Owned by the keeper's thread."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.position = Position.at(0, 0)
        """The position of the next search."""
        self._queues: dict[LimitKey, LimitedQueue] = {}
        self._next_search = 0.0
        self._must_search = False  # also without a notification

    def read_from(self, position: Position) -> None:
        """Search from this position on, and forget the queues."""
        self.position, self._next_search = position, 0.0
        self._queues.clear()

    def may_search(self) -> bool:
        """Return True if it is time for a search. If not, it follows later."""
        self._must_search = bool(self.limits.in_force) and time.monotonic() < self._next_search
        return bool(self.limits.in_force) and not self._must_search

    def add(self, position: Position, lowest: Mapping[LimitKey, int], *, may_have_more: bool) -> None:
        """Record the result of a search: the lowest position of a due job by queue."""
        self.position, self._must_search = position, may_have_more
        self._next_search = 0.0 if may_have_more else time.monotonic() + _INTERVAL
        for key, number in lowest.items():
            if key not in self._queues:
                self._queues[key] = LimitedQueue(key=key, limits=self.limits.of_key(key), start=number - 1)
            queue = self._queues[key]
            queue.start = min(queue.start, number - 1) if queue.may_have_more else number - 1
            queue.may_have_more = True

    def ready(self) -> list[LimitedQueue]:
        """Return the queues to claim from now."""
        time_ = time.monotonic()
        return [queue for queue in self._queues.values() if time_ >= queue.next_claim]

    def settle(self, queue: LimitedQueue, batch: LimitedBatch) -> None:
        """Record a claim. Other queues come before this one next."""
        queue.start, queue.may_have_more = batch.start, batch.may_have_more
        for name in batch.requested:
            del queue.groups[name]
        queue.groups.update(dict.fromkeys(batch.due_groups))
        if not queue.groups and not batch.chains:
            queue.wait(_INTERVAL)
        queue.groups.update(dict.fromkeys(batch.refused))
        del self._queues[queue.key]
        if queue.may_have_more or queue.groups:
            self._queues[queue.key] = queue

    def wake(self, slots: Collection[str], *, others_first: bool = False) -> None:
        """Claim under these limits, because a job has ended. ``others_first``: after other executors."""
        for queue in self._queues.values():
            if any(limit.slot in slots for limit in queue.limits):
                queue.wait(_INTERVAL if others_first else 0.0)

    def seconds_until_claim(self) -> float | None:
        """Return the seconds until there is something to claim or to search; None: after a notification."""
        due = [queue.next_claim for queue in self._queues.values()]
        if self._must_search:
            due.append(self._next_search)
        return max(0.0, min(due) - time.monotonic()) if due else None
