"""The argument and the results of a processor's function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

__all__ = ["Event", "Failed", "Output", "Refused"]


class Refused(Exception):
    """Raised by a function for an event that it will never take: it is set aside without further attempts."""


class Failed(Exception):
    """Raised by a function of a chain: the event is done, and its outcome is ``failed``. The text is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One record of the processor's topic.

    ``id``       the same for each attempt and in each process: the Idempotency-Key of the function's effects. It is
                 the ETag that the write was answered with
    ``value``    what the processor's ``decode`` made of the record; None for a tombstone
    ``attempt``  1 for the first call. A call that a crash cut off does not count
    """

    id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: Any = field(repr=False)
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One record to write. ``value`` is JSON, bytes that go as they are, or None for a tombstone.

    Raises TypeError or UnicodeEncodeError for what no record can hold.
    """

    topic: str
    key: str | None
    value: Any = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data()
        for text in (self.topic, self.key or "", *self.headers, *self.headers.values()):
            str.encode(text)

    def data(self) -> bytes | None:
        """Return the bytes of the value."""
        return self.value if self.value is None or isinstance(self.value, bytes) else orjson.dumps(self.value)
