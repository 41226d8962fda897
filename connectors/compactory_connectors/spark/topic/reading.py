"""A task reads a span of a topic into columns, with the store's own client: committed records only, as stores do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from compactory.errors import CompactoryError, Unreachable
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Consumer, Kafka, KafkaException, TopicPartition, event_kind, kafka_errors
from compactory.records import Partition
from compactory.table.batch import RecordRun, split_batch

from ..record_batch import Batches, of_columns
from .extent import Span

__all__ = ["SCHEMA", "Reading", "RecordsGone", "read_span", "tuned"]

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
_MESSAGES: Final = 2000
"""Messages of a call, as the store takes."""
_STALL: Final = 60.0
"""Seconds without progress after which a task fails."""

_log = logging.getLogger("compactory.spark")


class RecordsGone(CompactoryError):
    """Records of a span were deleted, or cut off, before they were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The order of tasks to read a topic. It travels to the executors with the properties and logins: never log it."""

    properties: Mapping[str, Any]
    topic: str
    memory: int = 512 << 20
    """Bytes of keys and values that a task holds."""
    keyless: bool = False
    """With records that have no key, which are no entries."""
    fails_on_loss: bool = True
    """Records that are gone fail the task; else they are skipped with a warning."""


@contextmanager
def tuned() -> Iterator[None]:
    """Tune this process, which belongs to the task alone, to read quickly within the block."""
    pa.set_memory_pool(pa.system_memory_pool())  # a third of a task's time went into pages that other pools gave back
    with collector_paused():  # messages come by the million, and hold no cycles
        yield


def read_span(reading: Reading, span: Span) -> Batches:
    """Return the records of a span, in log order: those with keys unless ``keyless``.

    Raises RecordsGone, CompactoryError, Unreachable.
    """
    kafka = Kafka(reading.properties)
    consumer = kafka.consumer("load")
    try:
        with kafka_errors(f"read topic {reading.topic!r}", kafka.bootstrap):
            for run in _runs(consumer, reading, span):
                has_all = reading.keyless or None not in run.keys
                kept = run if has_all else run.where([key is not None for key in run.keys])
                if kept.keys:
                    yield _batch(kept)
    finally:
        consumer.close()


def _batch(run: RecordRun) -> pa.RecordBatch:
    offsets = np.arange(run.offsets.start, run.offsets.stop) if isinstance(run.offsets, range) else run.offsets
    columns = (run.keys, run.values, np.full(len(run.keys), run.partition.partition), offsets, run.timestamps)
    return of_columns(columns, SCHEMA)


def _runs(consumer: Consumer, reading: Reading, span: Span) -> Iterator[RecordRun]:
    partition = Partition(reading.topic, span.partition)
    remaining = span
    while True:
        consumer.assign([TopicPartition(*partition, remaining.start, "", remaining.epoch)])
        try:
            for run in _assigned_runs(consumer, partition, remaining):
                yield run
                remaining = replace(remaining, start=run.next_offset, epoch=-1)
        except RecordsGone as error:
            if reading.fails_on_loss:
                raise
            start = consumer.get_watermark_offsets(TopicPartition(*partition), timeout=10)[0]
            _log.warning("%s; failOnDataLoss is false, so reading goes on at offset %d", error, start)
            if not remaining.start < start < span.end:
                return
            remaining = replace(remaining, start=start, epoch=-1)
        else:
            return


def _assigned_runs(consumer: Consumer, partition: Partition, span: Span) -> Iterator[RecordRun]:
    deadline = time.monotonic() + _STALL
    while True:
        messages = consumer.consume(1, 0.1)  # one, as for more it would wait until it has them all
        if messages:
            messages += consumer.consume(_MESSAGES, 0)
        runs, events = split_batch(messages, [partition]) if messages else ([], [])
        for run in runs:  # one at most, of one partition
            is_beyond = run.next_offset > span.end
            yield run.where([offset < span.end for offset in run.offsets]) if is_beyond else run
            if run.next_offset >= span.end:
                return
        if any(_is_end(event, span) for event in events):
            return
        if messages:
            deadline = time.monotonic() + _STALL  # only now: the consumer of the records may have taken long
        elif time.monotonic() > deadline:
            raise Unreachable("Kafka", f"{partition} gave nothing for {_STALL:g} s before offset {span.end}")


def _is_end(event: Any, span: Span) -> bool:
    """Return True for the event that the end was reached; control records at the end show in nothing else."""
    error = event.error()
    kind = event_kind(error)
    if kind == "end":
        return bool(event.offset() >= span.end)
    if kind == "lost":
        raise RecordsGone(
            f"records of topic {event.topic()!r} partition {span.partition} from offset {span.start} on were deleted:"
            " read again, or set option failOnDataLoss to false"
        )
    if kind == "cut":
        raise RecordsGone(
            f"topic {event.topic()!r} partition {span.partition} was cut off before offset {span.start} and has grown"
            " again: records that were read are gone; start with a new checkpointLocation"
        )
    if kind == "refused":
        raise KafkaException(error)
    return False
