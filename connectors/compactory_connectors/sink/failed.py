"""Records that were set aside: kept with the reason, tried again or dropped by operators; or sent to a topic."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Json

from compactory.errors import Unreachable
from compactory.kafka.client import Kafka, KafkaError, Message
from compactory.records import Partition
from compactory_sql import query

from .record import Batch, Failed, SinkRecord

__all__ = ["DeadLetters", "FailedRecord", "FailedRecords", "drop", "failed_records", "retry"]


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
            record._asdict() | {"sink": self._sink, "headers": _text(record), "reason": reason}
            for record, reason, _ in failed
        ]
        if rows:
            with self._connection.cursor() as cursor:
                cursor.executemany(query("sink/set_aside"), rows)

    def held(self, batch: Batch) -> set[bytes]:
        """Keys of the batch of which a record was set aside before."""
        keys = list({record.key for record in batch.records if record.key is not None})
        given = _chosen(self._sink, *batch.partition) | {"keys": keys}
        return {row[0] for row in self._connection.execute(query("sink/failed_keys"), given)}

    def counts(self) -> dict[Partition, int]:
        """How many there are, by partition."""
        rows = self._connection.execute(query("sink/failed_counts"), {"sink": self._sink}).fetchall()
        return {Partition(topic, number): count for topic, number, count in rows}

    def asked_again(self) -> list[Partition]:
        """Partitions with records that an operator wants to be tried again."""
        rows = self._connection.execute(query("sink/retry_partitions"), {"sink": self._sink}).fetchall()
        return [Partition(topic, number) for topic, number in rows]

    def take_again(self, partition: Partition, limit: int) -> list[SinkRecord]:
        """Take out the first ``limit`` of those records, in the order of their offsets."""
        choice = _chosen(self._sink, *partition) | {"limit": limit}
        rows = self._connection.execute(query("sink/take_retries"), choice).fetchall()
        records = (SinkRecord._make([*row[:6], _headers(row[6])]) for row in rows)
        return sorted(records, key=lambda record: record.offset)

    def follow(self, partition: Partition, records: Iterable[SinkRecord], failed: Iterable[Failed]) -> None:
        """Have the later records of these keys tried again, except those behind a record that has failed again."""
        keys = {record.key for record in records if record.key is not None}
        failed_keys = {item.record.key for item in failed if item.record.key is not None}
        if keys:
            choice = _chosen(self._sink, *partition) | {"keys": [*keys], "failed": [*failed_keys]}
            self._connection.execute(query("sink/retry_keys"), choice)


def _text(record: SinkRecord) -> Json | None:
    pairs = [[name, None if value is None else b64encode(value).decode()] for name, value in record.headers]
    return Json(pairs) if pairs else None


def _headers(pairs: Any) -> list[tuple[str, bytes | None]]:
    return [(name, None if value is None else b64decode(value)) for name, value in pairs or ()]


Choice: TypeAlias = str | int | None
"""A sink, a topic, a partition and an offset, in this order; None, or left out: all."""


def failed_records(connection: psycopg.Connection[Any], *chosen: Choice, limit: int = 1000) -> list[FailedRecord]:
    """The chosen ones, the first ``limit`` of them. Raises psycopg.Error."""
    cursor = connection.cursor(row_factory=class_row(FailedRecord))
    return cursor.execute(query("sink/failed"), _chosen(*chosen) | {"limit": limit}).fetchall()


def retry(connection: psycopg.Connection[Any], *chosen: Choice) -> int:
    """Have failed records tried again, and those that wait behind them after them; how many. Raises psycopg.Error."""
    return _change(connection, chosen, "sink/request_retry")


def drop(connection: psycopg.Connection[Any], *chosen: Choice) -> int:
    """Forget failed records for good; those that wait behind them are tried. How many. Raises psycopg.Error."""
    return _change(connection, chosen, "sink/drop", "sink/retry_waiting")


def _change(connection: psycopg.Connection[Any], chosen: tuple[Choice, ...], *statements: Any) -> int:
    """One partition at a time, under the lock of its offset: no record of it is set aside meanwhile."""
    count = 0
    for topic, partition in connection.execute(query("sink/chosen"), _chosen(*chosen)).fetchall():
        given = _chosen(*chosen) | {"topic": topic, "partition": partition}
        with connection.transaction():
            connection.execute(query("sink/lock"), given)
            done, *_ = [connection.execute(query(statement), given).rowcount for statement in statements]
            count += done
    return count


def _chosen(
    sink: Choice = None, topic: Choice = None, partition: Choice = None, offset: Choice = None
) -> dict[str, Choice]:
    return {"sink": sink, "topic": topic, "partition": partition, "offset": offset}


_SECONDS = 10.0


class DeadLetters:
    """A topic for failed records, with the headers that Kafka Connect writes. Owned by one thread.

    They are acknowledged before the transaction of their batch is committed: none is lost, and after a crash in between
    some are there twice.
    """

    def __init__(self, kafka: Kafka, topic: str, sink: str, *, with_headers: bool = True) -> None:
        self._topic = topic
        self._sink = sink
        self._with_headers = with_headers
        self._refused: list[str] = []
        self._producer = kafka.producer(
            {"linger.ms": 5}, {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 9000}, lambda _: None
        )

    def send(self, failed: Sequence[Failed]) -> None:
        """Return when Kafka has them. Raises Unreachable."""
        self._refused.clear()
        for item in failed:
            self._producer.produce(
                self._topic,
                value=item.record.value,
                key=item.record.key,
                headers=[*item.record.headers, *self._headers(item)],
                on_delivery=self._delivered,
            )
        left = self._producer.flush(_SECONDS) if failed else 0
        if left or self._refused:
            reason = self._refused[0] if self._refused else f"no answer within {_SECONDS:.0f} s"
            raise Unreachable("Kafka", f"dead-letter topic {self._topic!r} did not take a record: {reason}")

    def _headers(self, item: Failed) -> list[tuple[str, str | bytes | None]]:
        topic, partition, offset = item.record[:3]
        found = {
            "topic": topic,
            "partition": str(partition),
            "offset": str(offset),
            "connector.name": self._sink,
            "task.id": "0",
            "stage": "TASK_PUT" if item.error else "VALUE_CONVERTER",
            "class.name": "compactory_connectors.sink",
            "exception.class.name": item.error or "RecordRefused",
            "exception.message": item.reason,
        }
        return [(f"__connect.errors.{name}", text) for name, text in found.items()] if self._with_headers else []

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused.append(error.str())
