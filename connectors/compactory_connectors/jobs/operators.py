"""What operators do with jobs: look, retry, cancel, discard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory.errors import ConfigError, OrderRefused
from compactory_sql import query

__all__ = ["STATES", "JobRow", "cancel", "discard", "jobs_where", "retry"]

STATES = ("scheduled", "running", "succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as the table has it; ``failed`` is the dead letter."""

    id: int
    type: str
    state: str
    group: str | None
    origin: str | None
    attempt: int
    run_at: datetime
    created_at: datetime
    finished_at: datetime | None
    last_error: str | None
    payload: Any
    headers: dict[str, str] | None
    executor: int | None


def jobs_where(
    connection: psycopg.Connection[Any],
    ids: Sequence[int] = (),
    *,
    type_: str | None = None,
    state: str | None = None,
    group: str | None = None,
    limit: int = 100,
) -> list[JobRow]:
    """Jobs, newest first. Raises ConfigError for an unknown state, psycopg.Error."""
    if state is not None and state not in STATES:
        raise ConfigError(f"unknown state {state!r}: choose {', '.join(STATES)}")
    given = {"ids": list(ids) or None, "type": type_, "state": state, "group": group, "limit": limit}
    return connection.cursor(row_factory=class_row(JobRow)).execute(query("jobs/list"), given).fetchall()


def retry(connection: psycopg.Connection[Any], ids: Sequence[int] = (), type_: str | None = None) -> int:
    """Have failed jobs run again, from their first attempt on; by id also cancelled ones. How many there are.

    Raises OrderRefused where another job has got the unique key of one meanwhile, psycopg.Error.
    """
    try:
        with connection.transaction():
            found = connection.execute(query("jobs/retry"), {"ids": list(ids) or None, "type": type_}).fetchall()
            connection.execute(query("jobs/notify"))
    except psycopg.errors.UniqueViolation as error:
        raise OrderRefused("another job has the same unique key by now: cancel one of them first") from error
    return len(found)


def cancel(
    connection: psycopg.Connection[Any],
    ids: Sequence[int] = (),
    type_: str | None = None,
    group: str | None = None,
) -> int:
    """Cancel scheduled jobs; ask running ones to end, and cancel them then. Return how many there are."""
    return _remove(connection, ids, type_, group, ["scheduled", "running"])


def discard(connection: psycopg.Connection[Any], ids: Sequence[int] = (), type_: str | None = None) -> int:
    """Give failed jobs up, so that their groups go on. How many there are."""
    return _remove(connection, ids, type_, None, ["failed"])


def _remove(
    connection: psycopg.Connection[Any], ids: Sequence[int], type_: str | None, group: str | None, states: list[str]
) -> int:
    given = {"ids": list(ids) or None, "type": type_, "group": group, "states": states}
    found = connection.execute(query("jobs/cancel"), given).fetchall()
    groups = sorted({row[1] for row in found if row[1] is not None})
    with connection.transaction():  # its snapshot is younger than the commit above, so that it sees all jobs that wait
        connection.execute(query("jobs/next_of_groups"), {"groups": groups})
        connection.execute(query("jobs/notify"))
    return len(found)
