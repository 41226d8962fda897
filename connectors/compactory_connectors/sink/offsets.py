"""Offsets of a sink's partitions in Postgres: rows made beforehand, locked, and moved from an expected offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory.errors import ConfigError
from compactory.records import Partition
from compactory_sql import query

from .record import Batch, SinkRecord, part_of

__all__ = ["Moved", "Offsets", "PartitionOffset", "partition_offsets", "set_offset"]


class Moved(Exception):
    """The database's offset is not the expected one: another process was here, or an operator, or a restore."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(f"{partition.topic}-{partition.partition}")
        self.partition = partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """One partition of a sink. ``offset`` is of the next record, None: never used. ``failed``: records set aside."""

    sink: str
    topic: str
    partition: int
    topic_id: str | None
    offset: int | None
    updated_at: datetime
    failed: int
    waiting: int

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"updated_at": self.updated_at.isoformat()}


class Offsets:
    """The rows of one sink. Owned by the thread that owns the connection; raises psycopg.Error."""

    def __init__(self, connection: psycopg.Connection[Any], sink: str) -> None:
        self._connection = connection
        self._sink = sink

    def known(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int | None, str | None]]:
        """Offset and topic id of each partition, once no transaction is at work on it. Makes rows that are missing."""
        given = {
            "sink": self._sink,
            "topics": [part.topic for part in partitions],
            "partitions": [part.partition for part in partitions],
        }
        self._connection.execute(query("sink/make"), given)
        rows = self._connection.execute(query("sink/known"), given).fetchall()
        return {Partition(topic, number): (offset, topic_id) for topic, number, offset, topic_id in rows}

    def begin(self, partition: Partition, offset: int, topic_id: str | None) -> None:
        """Give a partition that was never used its first offset, unless another process did."""
        self._connection.execute(query("sink/begin"), self._row(partition) | {"offset": offset, "topic_id": topic_id})

    def lock(self, partition: Partition, expected: int) -> tuple[bool, bool]:
        """Lock the row for this transaction. Raises Moved.

        Says whether records of it are set aside, and whether parts of the keys are done beyond the offset.
        """
        row = self._connection.execute(query("sink/lock"), self._row(partition)).fetchone()
        if row is None or row[0] != expected:
            raise Moved(partition)
        return bool(row[1]), bool(row[2])

    def share(self, partition: Partition, expected: int) -> None:
        """Lock the row against moving it, beside others that do the same. Raises Moved."""
        row = self._connection.execute(query("sink/share"), self._row(partition)).fetchone()
        if row is None or row[0] != expected:
            raise Moved(partition)

    def move(self, partition: Partition, expected: int, offset: int) -> None:
        """Move the offset in this transaction. Raises Moved where it is not the expected one, or parts are done."""
        self._move(partition, expected, offset, parted=False)

    def parts(self, partition: Partition) -> tuple[dict[int, int], int]:
        """How far parts of the keys are done beyond the offset, and how many parts there are; 0: none was begun."""
        rows = self._connection.execute(query("sink/parts"), self._row(partition)).fetchall()
        return {part: until for part, _, until in rows}, rows[0][1] if rows else 0

    def left(self, batch: Batch) -> list[SinkRecord]:
        """The records of a batch that no part has done yet."""
        done, count = self.parts(batch.partition)
        if not count:
            return batch.records
        return [item for item in batch.records if item.offset >= done.get(part_of(item, count), batch.start)]

    def begin_parts(self, batch: Batch, numbers: Sequence[int], parts: int) -> None:
        """Make rows of parts that are missing, under the lock: processes then agree how many parts there are."""
        given = self._row(batch.partition) | {"numbers": list(numbers), "parts": parts, "start": batch.start}
        self._connection.execute(query("sink/begin_parts"), given)

    def part_done(self, batch: Batch, part: int, parts: int, expected: int) -> None:
        """Note that a part is done up to the batch's end. Raises Moved where another process has done it."""
        given = self._row(batch.partition) | {"part": part, "parts": parts, "expected": expected, "until": batch.end}
        if not self._connection.execute(query("sink/part_done"), given).rowcount:
            raise Moved(batch.partition)

    def finish(self, batch: Batch) -> None:
        """Move the offset to the batch's end, and forget the parts that have reached it. Raises Moved."""
        self._move(batch.partition, batch.start, batch.end, parted=True)
        self._connection.execute(query("sink/parts_reached"), self._row(batch.partition) | {"until": batch.end})

    def _move(self, partition: Partition, expected: int, offset: int, *, parted: bool) -> None:
        given = self._row(partition) | {"expected": expected, "offset": offset, "parted": parted}
        if not self._connection.execute(query("sink/move"), given).rowcount:
            raise Moved(partition)

    def _row(self, partition: Partition) -> dict[str, Any]:
        return {"sink": self._sink, "topic": partition.topic, "partition": partition.partition}


def partition_offsets(connection: psycopg.Connection[Any], sink: str | None = None) -> list[PartitionOffset]:
    """Every partition of a sink, or of all sinks. Raises psycopg.Error, and ConfigError for a sink without any."""
    cursor = connection.cursor(row_factory=class_row(PartitionOffset))
    found = cursor.execute(query("sink/status"), {"sink": sink}).fetchall()
    if sink is not None and not found:
        others = sorted({item.sink for item in partition_offsets(connection)})
        raise ConfigError(
            f"no sink {sink!r} has written to this database; those that have: {', '.join(others) or 'none'}"
        )
    return found


def set_offset(
    connection: psycopg.Connection[Any], sink: str, partition: Partition, offset: int, topic_id: str | None
) -> bool:
    """Have a sink go on at this offset; whether it has this partition. Raises psycopg.Error.

    A transaction under way ends first; a process at work finds its offset moved, and seeks.
    """
    given = {"sink": sink, "topic": partition.topic, "partition": partition.partition, "offset": offset}
    with connection.transaction():
        moved = connection.execute(query("sink/set"), given | {"topic_id": topic_id}).rowcount > 0
        connection.execute(query("sink/forget_parts"), given)
    return moved
