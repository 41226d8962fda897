"""Records that were set aside: kept with the reason, tried again or dropped by operators."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Json

from compactory.records import Partition
from compactory_sql import query

from .record import Batch, Failed, SinkRecord

__all__ = ["FailedRecord", "FailedRecords", "drop", "failed_records", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRecord:
    """A record that was set aside.

    ``reason`` None: it waits for an earlier one of its key. ``bytes`` is the value's size; None: a tombstone.
    ``again``: it will be tried again.
    """

    sink: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    bytes: int | None
    failed_at: datetime
    reason: str | None
    again: bool


class FailedRecords:
    """Those of one sink, within its transactions. Owned by one thread; raises psycopg.Error."""

    def __init__(self, connection: psycopg.Connection[Any], sink: str) -> None:
        self._connection = connection
        self._sink = sink

    def add(self, failed: Iterable[Failed]) -> None:
        """Set records aside."""
        rows = [
            {
                **record._asdict(),
                "sink": self._sink,
                "headers": Json([[name, _text(value)] for name, value in record.headers]) if record.headers else None,
                "reason": reason,
            }
            for record, reason, _ in failed
        ]
        if rows:
            with self._connection.cursor() as cursor:
                cursor.executemany(query("sink/set_aside"), rows)

    def held(self, batch: Batch) -> set[bytes]:
        """Keys of the batch of which a record was set aside before."""
        keys = list({record.key for record in batch.records if record.key is not None})
        given = {"sink": self._sink, "topic": batch.partition.topic, "partition": batch.partition.partition}
        return {row[0] for row in self._connection.execute(query("sink/held"), given | {"keys": keys})}

    def counts(self) -> dict[Partition, int]:
        """How many there are, by partition."""
        rows = self._connection.execute(query("sink/failed_counts"), {"sink": self._sink}).fetchall()
        return {Partition(topic, number): count for topic, number, count in rows}

    def asked_again(self) -> list[Partition]:
        """Partitions with records that an operator wants to be tried again."""
        rows = self._connection.execute(query("sink/asked_again"), {"sink": self._sink}).fetchall()
        return [Partition(topic, number) for topic, number in rows]

    def take_again(self, partition: Partition) -> list[SinkRecord]:
        """Take those records out, in the order of their offsets."""
        given = {"sink": self._sink, "topic": partition.topic, "partition": partition.partition}
        rows = self._connection.execute(query("sink/take_again"), given).fetchall()
        records = (
            SinkRecord._make([*row[:6], [(name, _bytes(value)) for name, value in row[6] or ()]]) for row in rows
        )
        return sorted(records, key=lambda record: record.offset)


def failed_records(
    connection: psycopg.Connection[Any],
    sink: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    limit: int = 1000,
) -> list[FailedRecord]:
    """Those of a sink, of a topic, of a partition, one, or all. Raises psycopg.Error."""
    given = _chosen(sink, topic, partition, offset) | {"limit": limit}
    return connection.cursor(row_factory=class_row(FailedRecord)).execute(query("sink/failed"), given).fetchall()


def retry(
    connection: psycopg.Connection[Any],
    sink: str,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
) -> int:
    """Have failed records tried again, and those that wait behind them after them; how many. Raises psycopg.Error."""
    return _change(connection, ("sink/again",), sink, topic, partition, offset)


def drop(
    connection: psycopg.Connection[Any],
    sink: str,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
) -> int:
    """Forget failed records for good; those that wait behind them are tried. How many. Raises psycopg.Error."""
    return _change(connection, ("sink/drop", "sink/freed"), sink, topic, partition, offset)


def _change(
    connection: psycopg.Connection[Any],
    statements: Sequence[Any],
    sink: str,
    topic: str | None,
    partition: int | None,
    offset: int | None,
) -> int:
    """One partition at a time, under the lock of its offset: no record of it is set aside meanwhile."""
    count = 0
    for name, number in connection.execute(query("sink/chosen"), _chosen(sink, topic, partition, offset)).fetchall():
        given = _chosen(sink, name, number, offset)
        with connection.transaction():
            connection.execute(query("sink/lock"), given)
            count += connection.execute(query(statements[0]), given).rowcount
            for statement in statements[1:]:
                connection.execute(query(statement), given)
    return count


def _chosen(sink: str | None, topic: str | None, partition: int | None, offset: int | None) -> dict[str, Any]:
    return {"sink": sink, "topic": topic, "partition": partition, "offset": offset}


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else b64decode(value)
