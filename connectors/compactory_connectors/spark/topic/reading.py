"""A task reads its span of a topic, keeps each key's newest record, and hands them on in columns.

Runs in the executors, with the store's own client: it reads committed records as stores do, needs the same properties
and no Java ones, and reduces versions before anything leaves the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from compactory.errors import CompactoryError, Unreachable
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Consumer, Kafka, KafkaException, Message, TopicPartition, event_kind, kafka_errors
from compactory.records import Partition
from compactory.table.batch import RecordRun, split_batch

from ..record_batch import Batches, of_columns
from .extent import Span

__all__ = [
    "HEADERS",
    "SCHEMA",
    "Reading",
    "in_rows",
    "newest",
    "newest_of",
    "read_span",
    "tuned",
]

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
    ]
)
"""The columns of records."""
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The headers of a record."""
_ROWS: Final = 20_000  # of a batch that is handed to Spark
_HELD: Final = 256 << 20  # bytes of keys and values before versions are dropped
_MESSAGES: Final = 2000  # as the store takes at a time
_STALL: Final = 60.0  # seconds without any progress after which a task fails


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The order for tasks. It travels to the executors with the properties, secrets included: never log it."""

    properties: Mapping[str, Any]
    topic: str
    spans: Sequence[Span]
    memory: int = 512 << 20
    """Bytes of keys and values that a task holds before it hands on what is the newest so far."""
    committed: bool = True
    """Without records of transactions that are open or were aborted."""
    keyless: bool = False
    """With records that have no key, which are no entries."""
    headers: bool = False
    """With a column ``headers``; needs ``keyless``."""
    on_spill: Callable[[], None] | None = None
    """Called when it does: a key may come again then."""


@contextmanager
def tuned() -> Iterator[None]:
    """Have this process read quickly within the block: a task has it for itself."""
    pa.set_memory_pool(pa.system_memory_pool())  # a third of a task's time went into pages that others gave back
    with collector_paused():  # messages come by the million, and hold no cycles
        yield


def newest(batches: Batches, reading: Reading | None = None) -> Batches:
    """The newest record of each key, in log order. Versions that are not go each time that too much is held.

    With a ``reading`` no more is held than its memory, and of a key that comes again after a spill there is another
    one, later.
    """
    held: list[pa.RecordBatch] = []
    size, limit = 0, _HELD if reading is None else reading.memory
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size <= limit:
            continue
        held = list(_last(held))
        size = sum(each.nbytes for each in held)
        if reading is None:
            limit = max(_HELD, 2 * size)
        elif size > limit * 3 // 4:
            if reading.on_spill is not None:
                reading.on_spill()
            yield from held
            held, size = [], 0
    yield from _last(held)


def newest_of(partitions: Iterable[Batches]) -> Batches:
    """The newest record of each key in these partitions, each key once. Holds every living entry until all are read.

    Within a partition the later offset counts, between partitions the newer timestamp, then the higher partition.
    """
    found = [list(newest(batches)) for batches in partitions]
    several = len(found) > 1
    held = [batch for batches in found for batch in batches]
    if not several or not held:
        yield from held
        return
    stamps, numbers = (np.concatenate([batch.column(name) for batch in held]) for name in ("timestamp_ms", "partition"))
    yield from _last(held, np.lexsort((numbers, stamps)))


def _last(batches: Sequence[pa.RecordBatch], order: np.ndarray | None = None) -> Batches:
    """The last record of each key in this order, by default log order.

    Only keys are looked at together: values are never in one piece.
    """
    if not batches:
        return
    keys = pa.concat_arrays([batch.column("key") for batch in batches])
    codes = keys.dictionary_encode().indices.to_numpy()
    places = np.arange(len(codes)) if order is None else order
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes[places]] = places  # of several positions for one code the last one stays
    stays = np.zeros(len(codes), bool)
    stays[last] = True
    ends = np.cumsum([batch.num_rows for batch in batches])
    yield from in_rows(
        batch.filter(pa.array(stays[end - batch.num_rows : end])) for batch, end in zip(batches, ends, strict=True)
    )


def in_rows(batches: Iterable[pa.RecordBatch]) -> Batches:
    """The same records in batches of some ten thousand rows, in which they are handed on and parsed at less cost."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS:
            yield pa.concat_batches(held)
            held, rows = [], 0
    if rows:
        yield pa.concat_batches(held)


def read_span(reading: Reading, span: Span) -> Batches:
    """Records of a span, in log order: those with keys unless ``keyless``."""
    kafka = Kafka(reading.properties)
    partition = Partition(reading.topic, span.partition)
    consumer = kafka.consumer("load", committed=reading.committed)
    try:
        consumer.assign([TopicPartition(reading.topic, span.partition, span.start)])
        with kafka_errors(f"read topic {reading.topic!r}", kafka.bootstrap):
            for run, headers in _runs(consumer, partition, span, headers=reading.headers):
                whole = reading.keyless or None not in run.keys
                kept = run if whole else run.where([key is not None for key in run.keys])
                if kept.keys:
                    batch = _batch(kept)
                    yield batch if headers is None else batch.append_column("headers", pa.array(headers, HEADERS))
    finally:
        consumer.close()


def _batch(run: RecordRun) -> pa.RecordBatch:
    offsets = np.arange(run.offsets.start, run.offsets.stop) if isinstance(run.offsets, range) else run.offsets
    columns = (run.keys, run.values, np.full(len(run.keys), run.partition.partition), offsets, run.timestamps)
    return of_columns(columns, SCHEMA)


def _runs(
    consumer: Consumer, partition: Partition, span: Span, *, headers: bool
) -> Iterator[tuple[RecordRun, list[list[tuple[str, Any]]] | None]]:
    """The runs of a span, with the headers of their records where they are wanted."""
    deadline = time.monotonic() + _STALL
    while True:
        messages = consumer.consume(1, 0.1)  # one, as for more it would wait until it has them all
        if messages:
            messages += consumer.consume(_MESSAGES, 0)
        runs, events = split_batch(messages, [partition]) if messages else ([], [])
        for run in runs:  # one at most, of one partition
            beyond = run.next_offset > span.end
            kept = run.where([offset < span.end for offset in run.offsets]) if beyond else run
            records = [message for message in messages if message.error() is None] if headers else []
            yield kept, [_headers(each) for each in records[: len(kept.keys)]] if headers else None
            if run.next_offset >= span.end:
                return
        if any(_ends(event, span) for event in events):
            return
        if messages:
            deadline = time.monotonic() + _STALL  # only now: whoever takes the records may have taken long
        elif time.monotonic() > deadline:
            raise Unreachable("Kafka", f"{partition} gave nothing for {_STALL:g} s before offset {span.end}")


def _headers(message: Message) -> list[tuple[str, Any]]:
    found = message.headers() or []
    return list(found.items()) if isinstance(found, dict) else found


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
