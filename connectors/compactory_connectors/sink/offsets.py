"""The offsets of a sink in Postgres: a row for each partition, which is locked and moved from an expected offset.

The database decides where a partition continues. `Locator` checks that offset against the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import psycopg
from psycopg.rows import class_row

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Located
from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .record import Batch, SinkStopped

__all__ = ["Locator", "Moved", "Offsets", "PartitionOffset", "Start", "open_sink", "partition_offsets"]

_SINK = Part(name="sink", needs="a sink needs", installed="the sink's tables are", may="keep a sink's offsets")
_LOCK_SHARE = 0.5  # of the time-out, for a lock: it waits for the transaction of another process


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


class _OffsetRow(NamedTuple):
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


class Offsets:
    """The rows of a sink. Owned by the thread of the connection. Raises psycopg.Error."""

    def __init__(self, connection: psycopg.Connection[Any], sink: str) -> None:
        self._connection = connection
        self._sink = sink

    def rows(self, partitions: Sequence[Partition]) -> dict[Partition, _OffsetRow]:
        """Return the rows of partitions, locked; insert missing rows."""
        topics, numbers = [part.topic for part in partitions], [part.partition for part in partitions]
        parameters = {"sink": self._sink, "topics": topics, "partitions": numbers}
        self._connection.execute(query("sink/insert_partitions"), parameters)
        rows = self._connection.execute(query("sink/read_offsets"), parameters).fetchall()
        return {Partition(topic, number): _OffsetRow(*columns) for topic, number, *columns in rows}

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

    def _run(self, statement: str, partition: Partition, **parameters: Any) -> psycopg.Cursor[Any]:
        row = {"sink": self._sink, "topic": partition.topic, "partition": partition.partition}
        return self._connection.execute(query(statement), row | parameters)


Start: TypeAlias = Literal["earliest", "latest"]


@dataclass(slots=True)
class Locator:
    """Looks up the start positions of partitions. Owned by one thread.

    Raises SinkStopped if the log lacks the next records, psycopg.Error, Unreachable.
    """

    kafka: Kafka
    offsets: Offsets
    sink: str
    start: Start
    committed: Callable[[Sequence[Partition]], Mapping[Partition, int]]
    """Returns committed offsets of the group, for partitions that no sink of this name has used."""
    _topic_ids: dict[str, str | None] = field(default_factory=dict)

    def locate(self, partitions: Sequence[Partition]) -> dict[Partition, Located]:
        """Return the start position of each partition that exists."""
        topics = self.kafka.topics({part.topic for part in partitions})
        ids = {name: topic.topic_id for name, topic in topics.items()}
        starts = self.kafka.log_starts(partitions)
        ends = self.kafka.high_watermarks(partitions)
        partitions = [part for part in partitions if part in starts and part in ends]
        rows = self.offsets.rows(partitions)
        new = [part for part, row in rows.items() if row.offset is None]
        if new:
            first = starts if self.start == "earliest" else ends
            chosen = {**{part: first[part] for part in new}, **self.committed(new)}
            for part in new:
                self.offsets.begin(part, chosen[part], ids.get(part.topic))
            rows |= self.offsets.rows(new)
        self._topic_ids.update(ids)
        problems = [
            problem
            for part, row in rows.items()
            for problem in self._problems(part, row, ids.get(part.topic), starts[part], ends[part])
        ]
        if problems:
            raise SinkStopped("\n".join(problems))
        return {part: at for part, row in rows.items() if (at := row.located(starts[part])) is not None}

    def check_topics(self, topics: Sequence[str]) -> bool:
        """Return True if no topic was deleted and created again since its positions were looked up."""
        present = self.kafka.topics(topics)
        return all(topic.topic_id == self._topic_ids.get(name) for name, topic in present.items())

    def _problems(
        self, part: Partition, row: _OffsetRow, current_id: str | None, start: int, end: int
    ) -> Iterator[str]:
        offset, topic_id = row.offset or 0, row.topic_id
        where = f"sink {self.sink!r}: partition {part.partition} of topic {part.topic!r}"
        remedy = f"compactory sink offsets set {self.sink} {part.topic} {part.partition}"
        if None not in {topic_id, current_id} and topic_id != current_id:
            yield (
                f"{where}: the topic was deleted and created again ({topic_id} is {current_id} now), so offset {offset}"
                f" means another record; to apply the records that it has now: {remedy} earliest"
            )
        elif offset < start:
            yield (
                f"{where}: records {offset} to {start - 1} were deleted before they were applied; raise retention.ms,"
                f" restore the lost records from elsewhere, then continue: {remedy} earliest"
            )
        elif offset > end:
            yield (
                f"{where}: the log ends at {end}, before the next offset {offset}: it was truncated; check which"
                f" records are applied twice or lost, then continue: {remedy} {end}"
            )


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
