"""Records for handlers, and errors of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from compactory.errors import CompactoryError
from compactory.kafka.client import Message
from compactory.records import Partition

__all__ = ["Batch", "Failed", "RecordRefused", "Records", "SinkRecord", "SinkStopped"]

Headers = Sequence[tuple[str, bytes | None]]


class RecordRefused(ValueError):
    """A record can't be written. The message has the reason and no value."""


class SinkStopped(CompactoryError):
    """A sink needs a decision of an operator. The message has the partition and the remedy."""


class SinkRecord(NamedTuple):
    """A record. ``timestamp_ms`` counts from 1970; ``value`` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> list[SinkRecord]:
        """Return the client's messages as records. Works by whole columns, three times as fast as a loop."""
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
    """A failed record. ``reason`` None: it waits for an earlier failed record of its key."""

    record: SinkRecord
    reason: str | None


class Records(list[SinkRecord]):
    """The records of one call of a handler, in the order of their offsets."""

    def __init__(self, records: Iterable[SinkRecord], *, is_retry: bool = False) -> None:
        super().__init__(records)
        self.is_retry = is_retry
        """True if some of them were refused before."""
        self.failed: list[Failed] = []
        self.prepared: Any = None
        """The result of the handler's ``prepare``."""
        self.prepare_next: Callable[[], object] = lambda: None
        """Starts to prepare the next batch: a handler calls it before it waits for Postgres."""
        self._failed_keys: set[bytes] = set()

    def forget(self) -> None:
        self.failed.clear()
        self._failed_keys.clear()

    def set_aside(self, record: SinkRecord, reason: str) -> None:
        """Set a record aside in the same transaction. ``reason`` must not contain values.

        The handler continues with the other records, except those for which :meth:`waits` returns True.
        """
        self.failed.append(Failed(record, reason))
        if record.key is not None:
            self._failed_keys.add(record.key)

    def waits(self, record: SinkRecord) -> bool:
        """Return True, and set the record aside, if an earlier record of its key was set aside."""
        if record.key not in self._failed_keys:
            return False
        self.failed.append(Failed(record, None))
        return True


class Batch(NamedTuple):
    """Records of one partition from offset ``start`` to before ``end``. ``leader_epoch`` is that of the last record."""

    partition: Partition
    start: int
    records: list[SinkRecord]
    end: int
    leader_epoch: int | None = None
