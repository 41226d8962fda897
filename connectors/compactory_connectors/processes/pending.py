"""Events that are not done: those that run, wait for their next attempt or behind one of their key; those set aside.

One that is not done when the offset moves past it is kept in the topic ``compactory-process-NAME``, written in the same
transaction as the offset. So the offset always moves on, and one event never blocks others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import orjson

from compactory.records import Partition
from compactory_connectors.consumer.group import Position

__all__ = ["LARGEST", "Lanes", "Parked", "Task", "group_of"]

State = Literal["waiting", "failed"]

LARGEST: Final = 2 << 20
"""Bytes of a kept event: one of the usual limit, and what is noted about it."""

_ERROR_CHARACTERS = 1000


def group_of(name: str) -> str:
    """Return the name of a processor's consumer group, and of the topic of its events that are not done."""
    return f"compactory-process-{name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """An event as it is kept. ``attempts`` have been made; the next is due at ``due``, in seconds since 1970.

    State ``failed`` is set aside: only an operator's order tries it again.
    """

    id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: bytes | None = field(repr=False)
    attempts: int = 0
    due: float = 0.0
    state: State = "waiting"
    error: str | None = None

    @property
    def place(self) -> Partition:
        """The partition that it was read from."""
        return Partition(self.topic, self.partition)

    def data(self) -> bytes:
        """Return the record's value: a line of JSON, then the event's bytes as they are."""
        names = [name for name in self.__dataclass_fields__ if name != "value"]
        known = {name: getattr(self, name) for name in names} | {"tombstone": self.value is None}
        return orjson.dumps(known) + b"\n" + (self.value or b"")

    @classmethod
    def parse(cls, data: bytes) -> Parked:
        """Read what `data` wrote."""
        head, _, value = data.partition(b"\n")
        known = orjson.loads(head)
        return cls(value=None if known.pop("tombstone") else value, **known)

    def after(self, error: BaseException, pause: float | None) -> Parked:
        """Return it after a failed attempt; without a ``pause`` it is set aside."""
        told = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS].encode(errors="replace").decode()
        due = time.time() + (pause or 0.0)
        state: State = "failed" if pause is None else "waiting"
        return replace(self, attempts=self.attempts + 1, due=due, state=state, error=told)


@dataclass(slots=True, eq=False)
class Task:
    """An event of ours that is not done. ``kept``: the topic has it. Owned by the runner's thread."""

    parked: Parked
    position: Position  # of its partition: another one once that was lost and gained again
    kept: bool
    running: bool = False


class Lanes:
    """The tasks of this process, a lane for each key: only the first of a lane runs. Owned by the runner's thread."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[Partition, str], list[Task]] = {}
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, event: str) -> bool:
        return event in self._ids

    def add(self, task: Task) -> None:
        """Put a task into its lane, by its offset."""
        lane = self._lanes.setdefault(_lane(task), [])
        lane.append(task)
        lane.sort(key=lambda each: (not each.running, each.parked.offset))
        self._ids.add(task.parked.id)

    def remove(self, task: Task) -> None:
        """Take out a task that is done."""
        lane = self._lanes[_lane(task)]
        lane.remove(task)
        self._ids.discard(task.parked.id)
        if not lane:
            del self._lanes[_lane(task)]

    def drop(self, position: Position) -> None:
        """Forget the tasks of a partition that was lost."""
        for task in [task for task in self.tasks() if task.position is position]:
            self.remove(task)

    def due(self) -> Iterator[Task]:
        """The tasks that may run now."""
        now = time.time()
        for lane in self._lanes.values():
            if not lane[0].running and lane[0].parked.due <= now:
                yield lane[0]

    def tasks(self) -> Iterator[Task]:
        """All of them."""
        for lane in self._lanes.values():
            yield from lane

    def unkept(self) -> list[Task]:
        """Those that the offset does not cover yet."""
        return [task for task in self.tasks() if not task.kept]


def _lane(task: Task) -> tuple[Partition, str]:
    parked = task.parked
    return parked.place, parked.id if parked.key is None else f"={parked.key}"
