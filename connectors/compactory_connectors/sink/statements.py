"""The statements of a sink: offsets, which are locked and moved from an expected offset, and failed records."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Json

from compactory.errors import ConfigError
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Located
from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .record import Batch, Failed, SinkRecord

__all__ = [
    "Choice",
    "Moved",
    "OffsetRow",
    "PartitionOffset",
    "SinkTable",
    "open_sink",
    "partition_offsets",
    "selection",
]

_SINK = Part(name="sink", needs="a sink needs", installed="the sink's tables are", may="keep a sink's offsets")
_LOCK_SHARE = 0.5  # of the time-out, for a lock: it waits for the transaction of another process

Choice: TypeAlias = str | int | None
"""A sink, a topic, a partition and an offset, in this order. None: all."""


def open_sink(conninfo: Mapping[str, Any], sink: str, timeout: float = 60.0) -> WatchedConnection:
    """A connection in autocommit to a database with the sink's tables; see `open_part`.

    ``timeout`` is in seconds, for a statement and for a pause between two statements of a transaction.
    """
    limits = {"limit": f"{timeout * 1000:.0f}ms", "lock": f"{timeout * 1000 * _LOCK_SHARE:.0f}ms"}
    connection, _ = open_part(conninfo, _SINK, sink, limits)
    connection.prepare_threshold = 2
    return connection


class Moved(Exception):
    """The database's offset is not the expected one: another process, an operator or a restore has moved it."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"{partition.topic}-{partition.partition}")
        self.partition = partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """A partition of a sink. ``offset`` is that of the next record; None: never used. ``failed``: failed records."""

    sink: str
    topic: str
    partition: int
    topic_id: str | None
    offset: int | None
    updated_at: datetime
    failed: int
    waiting: int


class OffsetRow(NamedTuple):
    """A row: the next offset (None: never used), the topic's id, and the last record's end and leader epoch."""

    offset: int | None
    topic_id: str | None
    record_end: int | None
    leader_epoch: int | None

    def located(self, start: int) -> Located | None:
        """Return the start position; None: never used. ``start`` is the begin of the log."""
        if self.offset is None:
            return None
        if self.record_end is None or self.leader_epoch is None or self.record_end < start:
            return Located(self.offset, self.offset)
        return Located(self.offset, self.record_end, self.leader_epoch)


@dataclass(slots=True)
class SinkTable:
    """The statements of one sink, in its transactions. Owned by the thread of the connection. Raises psycopg.Error."""

    connection: psycopg.Connection[Any]
    sink: str

    def rows(self, partitions: Sequence[Partition]) -> dict[Partition, OffsetRow]:
        """Return the rows of partitions, locked; insert missing rows."""
        topics, numbers = [part.topic for part in partitions], [part.partition for part in partitions]
        parameters = {"sink": self.sink, "topics": topics, "partitions": numbers}
        self.connection.execute(query("sink/insert_partitions"), parameters)
        rows = self.connection.execute(query("sink/read_offsets"), parameters).fetchall()
        return {Partition(topic, number): OffsetRow(*columns) for topic, number, *columns in rows}

    def begin(self, partition: Partition, offset: int, topic_id: str | None) -> None:
        """Set the first offset of a partition, unless another process has set one."""
        self._run("sink/set_first", partition, offset=offset, topic_id=topic_id)

    def lock(self, partition: Partition, expected: int) -> bool:
        """Lock the row in this transaction; return True if the partition has failed records. Raises Moved."""
        row = self._run("sink/lock", partition).fetchone()
        if row is None or row[0] != expected:
            raise Moved(partition)
        return bool(row[1])

    def move(self, batch: Batch) -> None:
        """Move the offset from the batch's start to its end in this transaction. Raises Moved if it is elsewhere."""
        move = {"expected": batch.start, "offset": batch.end}
        last = {"record_end": batch.end if batch.records else None, "leader_epoch": batch.leader_epoch}
        if not self._run("sink/advance", batch.partition, **move, **last).rowcount:
            raise Moved(batch.partition)

    def add_failed(self, failed: Iterable[Failed]) -> None:
        rows = [
            record._asdict() | {"sink": self.sink, "headers": _text(record), "reason": reason}
            for record, reason in failed
        ]
        if rows:
            with self.connection.cursor() as cursor:
                cursor.executemany(query("sink/set_aside"), rows)

    def blocked_keys(self, batch: Batch) -> set[bytes]:
        """Return the keys of the batch that have a failed record."""
        keys = list({record.key for record in batch.records if record.key is not None})
        parameters = selection(self.sink, *batch.partition) | {"keys": keys}
        return {row[0] for row in self.connection.execute(query("sink/failed_keys"), parameters)}

    def failed_counts(self) -> dict[Partition, int]:
        rows = self.connection.execute(query("sink/failed_counts"), {"sink": self.sink}).fetchall()
        return {Partition(topic, number): count for topic, number, count in rows}

    def partitions_to_retry(self) -> list[Partition]:
        """Return the partitions with records that an operator wants to retry."""
        rows = self.connection.execute(query("sink/retry_partitions"), {"sink": self.sink}).fetchall()
        return [Partition(topic, number) for topic, number in rows]

    def take_retries(self, partition: Partition, limit: int) -> list[SinkRecord]:
        """Remove and return the first ``limit`` records to retry, in the order of their offsets."""
        choice = selection(self.sink, *partition) | {"limit": limit}
        rows = self.connection.execute(query("sink/take_retries"), choice).fetchall()
        records = (SinkRecord._make([*row[:6], _headers(row[6])]) for row in rows)
        return sorted(records, key=lambda record: record.offset)

    def retry_later(self, partition: Partition, records: Iterable[SinkRecord], failed: Iterable[Failed]) -> None:
        """Retry the later records of these keys, except keys with a record that has failed again."""
        keys = {record.key for record in records if record.key is not None}
        failed_keys = {item.record.key for item in failed if item.record.key is not None}
        if keys:
            choice = selection(self.sink, *partition) | {"keys": [*keys], "failed": [*failed_keys]}
            self.connection.execute(query("sink/retry_keys"), choice)

    def _run(self, statement: str, partition: Partition, **parameters: Any) -> psycopg.Cursor[Any]:
        row = {"sink": self.sink, "topic": partition.topic, "partition": partition.partition}
        return self.connection.execute(query(statement), row | parameters)


def partition_offsets(connection: psycopg.Connection[Any], sink: str | None = None) -> list[PartitionOffset]:
    """Return every partition of a sink, or of all sinks. Raises psycopg.Error, ConfigError for an unknown sink."""
    cursor = connection.cursor(row_factory=class_row(PartitionOffset))
    offsets = cursor.execute(query("sink/status"), {"sink": sink}).fetchall()
    if sink is not None and not offsets:
        sinks = sorted({item.sink for item in partition_offsets(connection)})
        raise ConfigError(
            f"no sink {sink!r} has written to this database; those that have: {', '.join(sinks) or 'none'}"
        )
    return offsets


def _text(record: SinkRecord) -> Json | None:
    pairs = [[name, None if value is None else b64encode(value).decode()] for name, value in record.headers]
    return Json(pairs) if pairs else None


def _headers(pairs: Any) -> list[tuple[str, bytes | None]]:
    return [(name, None if value is None else b64decode(value)) for name, value in pairs or ()]


def selection(
    sink: Choice = None, topic: Choice = None, partition: Choice = None, offset: Choice = None
) -> dict[str, Choice]:
    """Return the parameters of a statement about these records; None: all."""
    return {"sink": sink, "topic": topic, "partition": partition, "offset": offset}
