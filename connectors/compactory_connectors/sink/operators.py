"""Operators' functions about records that a sink has set aside: list, try again, drop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory_sql import query

from .failed import Choice, selection

__all__ = ["FailedRecord", "drop", "failed_records", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRecord:
    """A failed record, or one that waits for a failed record of its key (``reason`` None).

    ``bytes`` is the size of the value; None: a tombstone. ``again``: it will be retried.
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


def failed_records(connection: psycopg.Connection[Any], *chosen: Choice, limit: int = 1000) -> list[FailedRecord]:
    """Return the first ``limit`` of the chosen failed records. Raises psycopg.Error."""
    cursor = connection.cursor(row_factory=class_row(FailedRecord))
    return cursor.execute(query("sink/failed"), selection(*chosen) | {"limit": limit}).fetchall()


def retry(connection: psycopg.Connection[Any], *chosen: Choice) -> int:
    """Retry failed records, and then the records that wait for them. Return their number. Raises psycopg.Error."""
    return _change(connection, chosen, "sink/request_retry")


def drop(connection: psycopg.Connection[Any], *chosen: Choice) -> int:
    """Delete failed records, and apply the records that wait for them. Return their number. Raises psycopg.Error."""
    return _change(connection, chosen, "sink/drop", "sink/retry_waiting")


def _change(connection: psycopg.Connection[Any], chosen: tuple[Choice, ...], *statements: Any) -> int:
    """Run statements for each partition with its offset locked. Return the number of rows of the first one."""
    count = 0
    for topic, partition in connection.execute(query("sink/chosen"), selection(*chosen)).fetchall():
        parameters = selection(*chosen) | {"topic": topic, "partition": partition}
        with connection.transaction():
            connection.execute(query("sink/lock"), parameters)
            rows = [connection.execute(query(statement), parameters).rowcount for statement in statements]
            count += rows[0]
    return count
