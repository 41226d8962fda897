"""A consumed batch, split into runs of columns. Columns are processed at C speed, a million records at a time."""

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

    ``timestamps`` are in milliseconds. ``epoch`` is the leader epoch of the last record, None where the broker reports
    none (Kafka below 0.11).
    """

    partition: Partition
    keys: list[bytes | None]
    values: list[bytes | None]
    offsets: Sequence[int]
    timestamps: list[int]
    epoch: int | None = None

    def where(self, mask: Sequence[bool]) -> RecordRun:
        """Return the records for which the mask is true, without an epoch: the last record may be another one."""
        return RecordRun(
            self.partition,
            list(compress(self.keys, mask)),
            list(compress(self.values, mask)),
            list(compress(self.offsets, mask)),
            list(compress(self.timestamps, mask)),
        )

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.offsets[-1] + 1


def split_batch(
    messages: Sequence[Message], partitions: Collection[Partition]
) -> tuple[list[RecordRun], list[Message]]:
    """Return the record runs of a consumed batch, and its events: errors and ends of partitions.

    ``partitions`` are those that the batch may have records of. If there is one, or one topic, the split is quicker.
    """
    events: list[Message] = []
    keys = list(map(_key, messages))
    if not all(keys):  # events have no key; few records have none or an empty one
        events = [message for message in messages if message.error() is not None]
        if events:
            messages = [message for message in messages if message.error() is None]
            keys = list(map(_key, messages))
    return (list(_record_runs(messages, keys, partitions)) if messages else []), events


def _record_runs(
    messages: Sequence[Message], keys: list[bytes | None], partitions: Collection[Partition]
) -> Iterator[RecordRun]:
    if len(partitions) == 1:
        yield _record_run(next(iter(partitions)), messages, keys)
        return
    topics = {partition.topic for partition in partitions}
    numbers = map(_partition, messages)
    start = 0
    for _, group in groupby(numbers if len(topics) == 1 else zip(map(_topic, messages), numbers, strict=True)):
        stop = start + len(list(group))
        partition = Partition(str(messages[start].topic()), int(messages[start].partition() or 0))
        yield _record_run(partition, messages[start:stop], keys[start:stop])
        start = stop


def _record_run(partition: Partition, messages: Sequence[Message], keys: list[bytes | None]) -> RecordRun:
    return RecordRun(
        partition,
        keys,
        list(map(_value, messages)),
        _offsets(messages),
        list(map(_milliseconds, map(_timestamp, messages))),
        messages[-1].leader_epoch(),
    )


def _offsets(messages: Sequence[Message]) -> Sequence[int]:
    """Return the offsets. They always rise, so the first and the last show whether one is missing between them."""
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    if last - first == len(messages) - 1:
        return range(first, last + 1)
    return list(map(_offset, messages))  # type: ignore[arg-type]  # consumed messages always have one
