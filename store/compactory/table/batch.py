"""A consumed batch as runs of columns: what is loaded a million at a time is moved column by column, at C speed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from operator import itemgetter

from compactory.kafka.client import Message
from compactory.records import Partition

__all__ = ["RecordRun", "split_batch"]

_key = Message.key
_value = Message.value
_offset = Message.offset
_timestamp = Message.timestamp
_partition = Message.partition
_topic = Message.topic
_milliseconds = itemgetter(1)


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Consecutive records of one partition, in log order. A value of None is a tombstone.

    ``epoch`` is the leader epoch of the last one, None where the broker reports none (Kafka below 0.11).
    """

    partition: Partition
    keys: list[bytes | None]
    values: list[bytes | None]
    offsets: Sequence[int]
    stamps: list[int]
    epoch: int | None = None

    def where(self, mask: Sequence[bool]) -> RecordRun:
        """Return the records for which the mask is true, without an epoch: their last one may be another."""
        columns = (list(compress(column, mask)) for column in (self.keys, self.values, self.offsets, self.stamps))
        return RecordRun(self.partition, *columns)  # type: ignore[arg-type]  # each column keeps its type

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.offsets[-1] + 1


def split_batch(messages: Sequence[Message], read: Collection[Partition]) -> tuple[list[RecordRun], list[Message]]:
    """Return the runs of a consumed batch, and its events (errors and ends of partitions).

    ``read`` are the partitions that it may hold: where there is one, or one topic, looking for others is spared.
    """
    events: list[Message] = []
    keys = list(map(_key, messages))
    if not all(keys):  # events have no key; nor have some bad records, and few keys are empty
        events = [message for message in messages if message.error() is not None]
        messages = [message for message in messages if message.error() is None] if events else messages
        keys = list(map(_key, messages))
    return (list(_runs(messages, keys, read)) if messages else []), events


def _runs(messages: Sequence[Message], keys: list[bytes | None], read: Collection[Partition]) -> Iterator[RecordRun]:
    if len(read) == 1:
        yield _run(next(iter(read)), messages, keys)
        return
    topics = {partition.topic for partition in read}
    numbers = map(_partition, messages)
    places = numbers if len(topics) == 1 else zip(map(_topic, messages), numbers, strict=True)
    start = 0
    for _, group in groupby(places):
        end = start + len(list(group))
        first = messages[start]
        yield _run(Partition(str(first.topic()), int(first.partition() or 0)), messages[start:end], keys[start:end])
        start = end


def _run(partition: Partition, messages: Sequence[Message], keys: list[bytes | None]) -> RecordRun:
    return RecordRun(
        partition,
        keys,
        list(map(_value, messages)),
        _offsets(messages),
        list(map(_milliseconds, map(_timestamp, messages))),
        messages[-1].leader_epoch(),
    )


def _offsets(messages: Sequence[Message]) -> Sequence[int]:
    """Return the offsets; they only ever rise, so where none is missing the first and the last tell the others."""
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    if last - first == len(messages) - 1:
        return range(first, last + 1)
    return list(map(_offset, messages))  # type: ignore[arg-type]  # consumed messages always have one
