"""Records that a sink has set aside: kept in the database with the reason."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, TypeAlias

import psycopg
from psycopg.types.json import Json

from compactory.records import Partition
from compactory_sql import query

from .record import Batch, Failed, SinkRecord

__all__ = ["Choice", "FailedRecords", "selection"]

Choice: TypeAlias = str | int | None
"""A sink, a topic, a partition and an offset, in this order. None: all."""


class FailedRecords:
    """The failed records of a sink, in its transactions. Owned by one thread. Raises psycopg.Error."""

    def __init__(self, connection: psycopg.Connection[Any], sink: str) -> None:
        self._connection = connection
        self._sink = sink

    def add(self, failed: Iterable[Failed]) -> None:
        """Store failed records."""
        rows = [
            record._asdict() | {"sink": self._sink, "headers": _text(record), "reason": reason}
            for record, reason in failed
        ]
        if rows:
            with self._connection.cursor() as cursor:
                cursor.executemany(query("sink/set_aside"), rows)

    def blocked_keys(self, batch: Batch) -> set[bytes]:
        """Return the keys of the batch that have a failed record."""
        keys = list({record.key for record in batch.records if record.key is not None})
        parameters = selection(self._sink, *batch.partition) | {"keys": keys}
        return {row[0] for row in self._connection.execute(query("sink/failed_keys"), parameters)}

    def counts(self) -> dict[Partition, int]:
        """Return the number of failed records of each partition."""
        rows = self._connection.execute(query("sink/failed_counts"), {"sink": self._sink}).fetchall()
        return {Partition(topic, number): count for topic, number, count in rows}

    def partitions_to_retry(self) -> list[Partition]:
        """Return the partitions with records that an operator wants to retry."""
        rows = self._connection.execute(query("sink/retry_partitions"), {"sink": self._sink}).fetchall()
        return [Partition(topic, number) for topic, number in rows]

    def take_retries(self, partition: Partition, limit: int) -> list[SinkRecord]:
        """Remove and return the first ``limit`` records to retry, in the order of their offsets."""
        choice = selection(self._sink, *partition) | {"limit": limit}
        rows = self._connection.execute(query("sink/take_retries"), choice).fetchall()
        records = (SinkRecord._make([*row[:6], _headers(row[6])]) for row in rows)
        return sorted(records, key=lambda record: record.offset)

    def retry_later(self, partition: Partition, records: Iterable[SinkRecord], failed: Iterable[Failed]) -> None:
        """Retry the later records of these keys, except keys with a record that has failed again."""
        keys = {record.key for record in records if record.key is not None}
        failed_keys = {item.record.key for item in failed if item.record.key is not None}
        if keys:
            choice = selection(self._sink, *partition) | {"keys": [*keys], "failed": [*failed_keys]}
            self._connection.execute(query("sink/retry_keys"), choice)


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
