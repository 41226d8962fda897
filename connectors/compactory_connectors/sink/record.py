"""A record of a topic as a handler gets it, and what may be wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple
from zlib import crc32

from compactory.errors import CompactoryError
from compactory.kafka.client import Message
from compactory.records import Partition

__all__ = ["Batch", "Failed", "RecordRefused", "Records", "SinkRecord", "SinkStopped", "part_of"]

Headers = Sequence[tuple[str, bytes | None]]


class RecordRefused(ValueError):
    """A record that can't be written; the text says why and shows no value."""


class SinkStopped(CompactoryError):
    """A sink can't go on until somebody decides; the text names the partition and the remedy."""


class SinkRecord(NamedTuple):
    """One record. ``timestamp_ms`` counts from 1970; ``value`` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> list[SinkRecord]:
        """The client's messages as records; by whole columns, which takes a third of the time of a loop."""
        columns = zip(
            map(Message.topic, messages),
            map(Message.partition, messages),
            map(Message.offset, messages),
            map(Message.key, messages),
            map(Message.value, messages),
            map(itemgetter(1), map(Message.timestamp, messages)),
            [headers or () for headers in map(Message.headers, messages)],
            strict=True,
        )
        return list(map(tuple.__new__, repeat(cls), columns))


class Failed(NamedTuple):
    """A record that is set aside; without a reason it waits for an earlier one of its key."""

    record: SinkRecord
    reason: str | None
    error: str = ""
    """Name of the exception's class."""


class Records(list[SinkRecord]):
    """The records of one call of a handler, in the order of their offsets."""

    def __init__(self, records: Iterable[SinkRecord], *, holds: bool = True, again: bool = False) -> None:
        super().__init__(records)
        self.again = again
        """Whether some of them were refused before."""
        self.failed: list[Failed] = []
        self.prepared: Any = None
        """The result of the handler's ``prepare`` for them."""
        self.prepare_next: Callable[[], object] = lambda: None
        """For a handler that waits for Postgres now: have the next batch prepared meanwhile."""
        self._holds = holds
        self._held: set[bytes] = set()

    def forget(self) -> None:
        """As if none had been set aside."""
        self.failed.clear()
        self._held.clear()

    def set_aside(self, record: SinkRecord, reason: str) -> None:
        """Have this record set aside in the same transaction; ``reason`` must not show values.

        The handler goes on with the others, but for those that :meth:`waits` tells of.
        """
        self.failed.append(Failed(record, reason))
        if self._holds and record.key is not None:
            self._held.add(record.key)

    def waits(self, record: SinkRecord) -> bool:
        """Whether an earlier record of the same key was set aside, so that this one is set aside behind it."""
        if record.key not in self._held:
            return False
        self.failed.append(Failed(record, None))
        return True


class Batch(NamedTuple):
    """Records of one partition from ``start`` on; the next one is at ``end``. ``leader_epoch`` is the last one's."""

    partition: Partition
    start: int
    records: list[SinkRecord]
    end: int
    leader_epoch: int | None = None


def part_of(record: SinkRecord, parts: int) -> int:
    """The part that a record belongs to: all of one key to one part, the same in every process."""
    return record.offset % parts if record.key is None else crc32(record.key) % parts
