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


def failed_records(connection: psycopg.Connection[Any], *chosen: Choice, limit: int = 1000) -> list[FailedRecord]:
    """The chosen ones, the first ``limit`` of them. Raises psycopg.Error."""
    cursor = connection.cursor(row_factory=class_row(FailedRecord))
    return cursor.execute(query("sink/failed"), selection(*chosen) | {"limit": limit}).fetchall()


def retry(connection: psycopg.Connection[Any], *chosen: Choice) -> int:
    """Have failed records tried again, and those that wait behind them after them; how many. Raises psycopg.Error."""
    return _change(connection, chosen, "sink/request_retry")


def drop(connection: psycopg.Connection[Any], *chosen: Choice) -> int:
    """Forget failed records for good; those that wait behind them are tried. How many. Raises psycopg.Error."""
    return _change(connection, chosen, "sink/drop", "sink/retry_waiting")


def _change(connection: psycopg.Connection[Any], chosen: tuple[Choice, ...], *statements: Any) -> int:
    """One partition at a time, under the lock of its offset: no record of it is set aside meanwhile."""
    count = 0
    for topic, partition in connection.execute(query("sink/chosen"), selection(*chosen)).fetchall():
        given = selection(*chosen) | {"topic": topic, "partition": partition}
        with connection.transaction():
            connection.execute(query("sink/lock"), given)
            done, *_ = [connection.execute(query(statement), given).rowcount for statement in statements]
            count += done
    return count
