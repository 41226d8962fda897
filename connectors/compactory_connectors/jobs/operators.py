"""Operators' functions about jobs: list, retry, cancel, discard."""

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

_UNIQUE = "cancel or discard one of them first"

STATES = ("scheduled", "running", "succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in the table. A ``failed`` job is a dead letter."""

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
    """Return jobs, newest first. Raises ConfigError for an unknown state, psycopg.Error."""
    if state is not None and state not in STATES:
        raise ConfigError(f"unknown state {state!r}: choose {', '.join(STATES)}")
    parameters = {"ids": list(ids) or None, "type": type_, "state": state, "group": group, "limit": limit}
    return connection.cursor(row_factory=class_row(JobRow)).execute(query("jobs/list"), parameters).fetchall()


def retry(connection: psycopg.Connection[Any], ids: Sequence[int] = (), type_: str | None = None) -> int:
    """Schedule failed jobs again from their first attempt; by id also cancelled jobs and jobs that wait for a retry.

    Return their number. Raises OrderRefused if another job has the unique key of one of them, or if jobs stay locked
    (the others are done then); psycopg.Error.
    """
    try:
        changed, locked = _apply(connection, "jobs/retry", {"ids": list(ids) or None, "type": type_})
    except psycopg.errors.UniqueViolation as error:
        raise OrderRefused(
            "another job has the unique key of one by now, nothing was changed:"
            f" {_UNIQUE} ({error.diag.message_detail})"
        ) from error
    finally:
        connection.execute(query("jobs/notify"))
    return _count(changed, locked)


def cancel(
    connection: psycopg.Connection[Any],
    ids: Sequence[int] = (),
    type_: str | None = None,
    group: str | None = None,
) -> int:
    """Cancel scheduled jobs; ask running jobs to end, and cancel them when they do. Return their number.

    Raises OrderRefused if jobs stay locked by other transactions, psycopg.Error.
    """
    return _remove(connection, ids, type_, group, ["scheduled", "running"])


def discard(connection: psycopg.Connection[Any], ids: Sequence[int] = (), type_: str | None = None) -> int:
    """Cancel failed jobs, so that their groups continue. Return their number. Raises as `cancel` does."""
    return _remove(connection, ids, type_, None, ["failed"])


def _remove(
    connection: psycopg.Connection[Any], ids: Sequence[int], type_: str | None, group: str | None, states: list[str]
) -> int:
    parameters = {"ids": list(ids) or None, "type": type_, "group": group, "states": states}
    changed, locked = _apply(connection, "jobs/cancel", parameters)
    groups = sorted({row[1] for row in changed if row[1] is not None})
    with connection.transaction():  # its snapshot is newer than the commit above, so it sees every waiting job
        connection.execute(query("jobs/next_of_groups"), {"groups": groups})
        connection.execute(query("jobs/notify"))
    return _count(changed, locked)


def _apply(connection: psycopg.Connection[Any], name: str, parameters: dict[str, Any]) -> tuple[list[Any], list[int]]:
    """Run a statement for all jobs that are not locked, then for each locked job in a transaction of its own.

    A transaction that waits for a job has locked no other job, so it can't deadlock with an executor. Return the rows
    of changed jobs, and the ids of jobs that stayed locked until the time-out. Raises OrderRefused if a job that was
    locked can't be scheduled.
    """
    rows = connection.execute(query(name), parameters).fetchall()
    locked = [row[0] for row in rows if row[2]]
    changed = [row for row in rows if not row[2]]
    for number, job in enumerate(locked):
        try:
            with connection.transaction():
                connection.execute(query("jobs/lock"), {"id": job})
                changed += connection.execute(query(name), parameters | {"ids": [job]}).fetchall()
        except psycopg.errors.LockNotAvailable:
            return changed, locked[number:]
        except psycopg.errors.UniqueViolation as error:
            raise OrderRefused(
                f"another job has the unique key of job {job} by now, {len(changed)} other jobs are done: {_UNIQUE}"
            ) from error
    return changed, []


def _count(changed: list[Any], locked: list[int]) -> int:
    """Return the number of changed jobs. Raises OrderRefused if jobs stayed locked."""
    if locked:
        names = ", ".join(map(str, locked[:10])) + (", …" if len(locked) > 10 else "")
        raise OrderRefused(
            f"{len(locked)} of {len(changed) + len(locked)} jobs {'is' if len(locked) == 1 else 'are'} locked by"
            f" another transaction, the others are done: try again once it has ended, with {names}"
        )
    return len(changed)
