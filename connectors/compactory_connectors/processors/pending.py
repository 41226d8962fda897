"""Events that are not done: those that run, wait for their next attempt or behind one of their key; those set aside.

One that is not done when the offset moves past it is kept in the topic ``compactory-process-NAME``, written in the same
transaction as the offset. So the offset always moves on, and events that wait take little memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import orjson

from compactory.records import Partition
from compactory_connectors.handler_errors import described, frames
from compactory_connectors.kafka.consumer_group import Position

from .event import Failed, Output, Refused

__all__ = ["LARGEST", "Parked", "Task", "group_of"]

State = Literal["waiting", "failed"]

LARGEST: Final = 2 << 20
"""Bytes of a kept event: one of the usual limit, and what is noted about it."""


def group_of(name: str) -> str:
    """Return the name of a processor's consumer group, and of the topic of its events that are not done."""
    return f"compactory-process-{name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """An event as it is kept. ``attempts`` have been made; the next is due at ``due``, in seconds since 1970.

    State ``failed`` is set aside: only an operator's order tries it again. ``size`` is that of the value, in bytes.
    """

    id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: bytes | None = field(repr=False)
    size: int = 0
    attempts: int = 0
    due: float = 0.0
    state: State = "waiting"
    error: str | None = None
    trace: str | None = None

    @property
    def place(self) -> Partition:
        """The partition that it was read from."""
        return Partition(self.topic, self.partition)

    def without_value(self) -> Parked:
        """Return the event without its value, as it waits in memory."""
        return self if self.value is None else replace(self, value=None)

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
        """Return the event after a failed attempt; without a ``pause``, in seconds, it is set aside.

        It keeps the class of the error and the calls that raised it, the text only of `Failed`, `Refused` and our own.
        """
        due = time.time() + (pause or 0.0)
        state: State = "failed" if pause is None else "waiting"
        text, trace = described(error, Failed, Refused), frames(error.__traceback__)
        return replace(self, attempts=self.attempts + 1, due=due, state=state, error=text, trace=trace)


@dataclass(slots=True, eq=False)
class Task:
    """An event of ours that is not done. Owned by the runner's thread; a call's thread gives its results.

    ``outputs`` and ``left`` are the results: what to write, and what is kept of the event; None: it is done. While an
    event waits that the topic of kept events has, ``parked`` lacks the value: it is read again before the next call.
    """

    parked: Parked
    position: Position  # of its partition: another one once that was lost and gained again
    kept: bool  # whether the topic of kept events has it
    size: int  # bytes of its value
    running: bool = False  # from its call until the results are committed
    ended: bool = False  # whether the call has given its results
    outputs: Sequence[Output] = ()
    left: Parked | None = None
