"""What a task does: reads its span of a topic, keeps each key's newest record, hands the rest on in columns.

Runs in the executors, with the store's own client: it reads committed records as stores do, needs the same properties
and no Java ones, and reduces versions before anything leaves the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

import pyarrow as pa

from compactory.batch import Run, split
from compactory.errors import CompactoryError, Unreachable
from compactory.kafka import Consumer, Kafka, KafkaException, TopicPartition, event_kind, kafka_errors
from compactory.records import Partition

from .topic_extent import Span

__all__ = ["COLUMNS", "Reading", "every", "newest", "reader"]

COLUMNS: Final = "key binary, value binary, partition int, offset bigint, timestamp_ms bigint"
"""The columns of records, as Spark spells them."""

_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
    ]
)
_ROWS: Final = 20_000  # of a batch that is handed to Spark
_MESSAGES: Final = 2000  # as the store takes at a time
_STALL: Final = 60.0  # seconds without any progress after which a task fails

_Record: TypeAlias = tuple[bytes, tuple[bytes | None, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What tasks have to know. It travels to the executors with the properties, secrets included: never log it."""

    properties: Mapping[str, Any]
    topic: str
    spans: Sequence[Span]
    memory: int = 256 << 20
    """Bytes of keys and values that a task holds before it hands them on."""


def reader(
    reading: Reading, keep: Callable[[Iterator[Run], int], Iterator[Sequence[_Record]]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: takes numbers of spans, gives records."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kafka = Kafka(reading.properties)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                span = reading.spans[number]
                for records in keep(_runs(kafka, reading.topic, span), reading.memory):
                    yield _batch(records, span.partition)

    return read


def newest(runs: Iterator[Run], memory: int) -> Iterator[Sequence[_Record]]:
    """The newest record of each key; of a key that comes again after ``memory`` bytes another one, later."""
    held: dict[bytes, tuple[bytes | None, int, int]] = {}
    size = 0
    for run in runs:
        held.update(zip(run.keys, zip(run.values, run.offsets, run.stamps, strict=True), strict=True))  # type: ignore[arg-type]
        size += _size(run)
        if size > memory:
            size = sum(len(key) + len(kept[0] or b"") for key, kept in held.items())
            if size > memory // 2:
                yield from _slices(held)
                held, size = {}, 0
    yield from _slices(held)


def every(runs: Iterator[Run], _memory: int) -> Iterator[Sequence[_Record]]:
    """Every record."""
    for run in runs:
        yield list(zip(run.keys, zip(run.values, run.offsets, run.stamps, strict=True), strict=True))  # type: ignore[arg-type]


def _size(run: Run) -> int:
    return sum(map(len, filter(None, run.keys))) + sum(map(len, filter(None, run.values)))


def _slices(held: Mapping[bytes, tuple[bytes | None, int, int]]) -> Iterator[Sequence[_Record]]:
    left = iter(held.items())
    while records := list(islice(left, _ROWS)):
        yield records


def _batch(records: Sequence[_Record], partition: int) -> pa.RecordBatch:
    keys, rest = zip(*records, strict=True)
    values, offsets, stamps = zip(*rest, strict=True)
    columns = (keys, values, [partition] * len(keys), offsets, stamps)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)


def _runs(kafka: Kafka, topic: str, span: Span) -> Iterator[Run]:
    """Committed records of a span that have keys, in log order."""
    partition = Partition(topic, span.partition)
    consumer = kafka.consumer("load")
    try:
        consumer.assign([TopicPartition(topic, span.partition, span.start)])
        with kafka_errors(f"read topic {topic!r}", kafka.bootstrap):
            for run in _until(consumer, partition, span):
                yield run if None not in run.keys else run.where([key is not None for key in run.keys])
    finally:
        consumer.close()


def _until(consumer: Consumer, partition: Partition, span: Span) -> Iterator[Run]:
    deadline = time.monotonic() + _STALL
    while True:
        messages = consumer.consume(1, 0.1)  # one, as for more it would wait until it has them all
        if messages:
            messages += consumer.consume(_MESSAGES, 0)
            deadline = time.monotonic() + _STALL
        runs, events = split(messages, [partition]) if messages else ([], [])
        for run in runs:
            if run.next_offset > span.end:
                yield run.where([offset < span.end for offset in run.offsets])
            else:
                yield run
            if run.next_offset >= span.end:
                return
        if any(_ends(event, span) for event in events):
            return
        if time.monotonic() > deadline:
            raise Unreachable("Kafka", f"{partition} gave nothing for {_STALL:g} s before offset {span.end}")


def _ends(event: Any, span: Span) -> bool:
    """Whether an event says that the end was reached: control records at a tail show in nothing else."""
    error = event.error()
    kind = event_kind(error)
    if kind == "end":
        return bool(event.offset() >= span.end)
    if kind in {"lost", "cut"}:
        raise CompactoryError(
            f"records of {event.topic()} partition {span.partition} were deleted while they were read: run this again"
        )
    if kind == "refused":
        raise KafkaException(error)
    return False
