"""The argument and the results of a processor's function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

__all__ = ["Event", "Failed", "Output", "Refused"]


class Refused(Exception):
    """Raised by a function to set an event aside without further attempts."""


class Failed(Exception):
    """Raised by a function of a chain: the event is finished with the outcome ``failed``. The text is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A record of the processor's topic.

    ``id``       equal for each attempt in each process: use it as Idempotency-Key of the function's effects. It is
                 the ETag of the write
    ``value``    the decoded value; None for a tombstone
    ``attempt``  1 for the first call. A call that a crash interrupted does not count
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
    """A record to write. ``value`` is JSON, or bytes that are written unchanged, or None for a tombstone.

    Raises TypeError or UnicodeEncodeError for a value that no record can have.
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
        return self.value if self.value is None or isinstance(self.value, bytes) else orjson.dumps(self.value)
