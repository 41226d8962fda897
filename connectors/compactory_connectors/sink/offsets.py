"""Offsets of a sink's partitions in Postgres: rows made beforehand, locked, and moved from an expected offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory.records import Partition
from compactory_sql import query

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

    def lock(self, partition: Partition, expected: int) -> bool:
        """Lock the row for this transaction; whether records of it wait set aside. Raises Moved."""
        row = self._connection.execute(query("sink/lock"), self._row(partition)).fetchone()
        if row is None or row[0] != expected:
            raise Moved(partition)
        return bool(row[1])

    def share(self, partition: Partition, expected: int) -> None:
        """Lock the row against moving it, beside others that do the same. Raises Moved."""
        row = self._connection.execute(query("sink/share"), self._row(partition)).fetchone()
        if row is None or row[0] != expected:
            raise Moved(partition)

    def move(self, partition: Partition, expected: int, offset: int) -> None:
        """Move the offset in this transaction. Raises Moved where it is not the expected one."""
        given = self._row(partition) | {"expected": expected, "offset": offset}
        if not self._connection.execute(query("sink/move"), given).rowcount:
            raise Moved(partition)

    def _row(self, partition: Partition) -> dict[str, Any]:
        return {"sink": self._sink, "topic": partition.topic, "partition": partition.partition}


def partition_offsets(connection: psycopg.Connection[Any], sink: str | None = None) -> list[PartitionOffset]:
    """Every partition of a sink, or of all sinks. Raises psycopg.Error."""
    cursor = connection.cursor(row_factory=class_row(PartitionOffset))
    return cursor.execute(query("sink/status"), {"sink": sink}).fetchall()


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
