"""Unfinished events: running, waiting for the next attempt or for an earlier event of the key, or failed.

An event that is unfinished when the offset moves past it is stored in the topic ``compactory-process-NAME``, in the
transaction of the offset. So the offset always moves, and waiting events take little memory.

The topic also has what operators have done: the record `PAUSED` while the processor is paused, and a record for each
line of the operator log.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import orjson

from compactory.records import Partition
from compactory_connectors.handler_errors import described, frames
from compactory_connectors.kafka.consumer_group import Position

from .event import Failed, Output, Refused

__all__ = ["LARGEST", "LOG_PREFIX", "PAUSED", "StoredEvent", "Task", "group_of", "parse"]

State = Literal["waiting", "failed"]

LARGEST: Final = 2 << 20
"""Bytes of a stored event: a value of the usual limit, and the fields beside it."""


PAUSED: Final = "/paused"
"""Key of the record that a paused processor has. No event's id has a slash."""

LOG_PREFIX: Final = "/log/"
"""Begin of the keys of lines of the operator log."""


def group_of(name: str) -> str:
    """Return the name of a processor's consumer group, and of the topic of its unfinished events."""
    return f"compactory-process-{name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEvent:
    """An unfinished event after ``attempts`` attempts. The next one is due at ``due``, in seconds since 1970.

    A ``failed`` event is retried only by an operator. ``size`` is that of the value, in bytes.
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
        return Partition(self.topic, self.partition)

    def without_value(self) -> StoredEvent:
        """Return the event without its value, to wait in memory."""
        return self if self.value is None else replace(self, value=None)

    def data(self) -> bytes:
        """Return the value of the record: a line of JSON, then the bytes of the event's value."""
        names = [name for name in self.__dataclass_fields__ if name != "value"]
        fields = {name: getattr(self, name) for name in names} | {"tombstone": self.value is None}
        return orjson.dumps(fields) + b"\n" + (self.value or b"")

    def after(self, error: BaseException, pause: float | None) -> StoredEvent:
        """Return the event after a failed attempt; ``pause`` is in seconds, None: the event has failed.

        It has the class of the error and the calls that raised it; the text only of `Failed`, `Refused` and ours.
        """
        due = time.time() + (pause or 0.0)
        state: State = "failed" if pause is None else "waiting"
        text, trace = described(error, Failed, Refused), frames(error.__traceback__)
        return replace(self, attempts=self.attempts + 1, due=due, state=state, error=text, trace=trace)


def parse(data: bytes) -> StoredEvent | dict[str, Any]:
    """Read a record of the topic: a stored event, or the fields of an operator's record. Raises ValueError."""
    head, _, value = data.partition(b"\n")
    fields: dict[str, Any] = orjson.loads(head)
    if "tombstone" not in fields:
        return fields
    return StoredEvent(value=None if fields.pop("tombstone") else value, **fields)


@dataclass(slots=True, eq=False)
class Task:
    """An unfinished event of this process. Owned by the runner's thread; the thread of a call sets the results.

    The results are ``outputs``, to be written, and ``remaining``, to be stored; None: the event is finished. While an
    event waits in the topic of stored events, ``stored`` has no value: it is read again before the next call.
    """

    stored: StoredEvent
    position: Position  # of its partition; another object after a rebalance
    is_stored: bool  # the topic of stored events has it
    size: int  # bytes of its value
    running: bool = False  # from its call until the results are committed
    ended: bool = False  # the call has set its results
    outputs: Sequence[Output] = ()
    remaining: StoredEvent | None = None
