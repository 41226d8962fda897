"""Operators' commands about jobs: list, show, retry, cancel, discard."""

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

    Raises OrderRefused where another job has got the unique key of one meanwhile, or some stay locked; psycopg.Error.
    """
    try:
        found, busy = _carry_out(connection, "jobs/retry", {"ids": list(ids) or None, "type": type_})
    except psycopg.errors.UniqueViolation as error:
        raise OrderRefused(
            f"another job has the unique key of one by now, nothing was changed: cancel or discard one of them first"
            f" ({error.diag.message_detail})"
        ) from error
    connection.execute(query("jobs/notify"))
    return _counted(found, busy)


def cancel(
    connection: psycopg.Connection[Any],
    ids: Sequence[int] = (),
    type_: str | None = None,
    group: str | None = None,
) -> int:
    """Cancel scheduled jobs; ask running ones to end, and cancel them then. Return how many there are.

    Raises OrderRefused where some stay locked by other transactions, psycopg.Error.
    """
    return _remove(connection, ids, type_, group, ["scheduled", "running"])


def discard(connection: psycopg.Connection[Any], ids: Sequence[int] = (), type_: str | None = None) -> int:
    """Give failed jobs up, so that their groups go on. How many there are. Raises as `cancel`."""
    return _remove(connection, ids, type_, None, ["failed"])


def _remove(
    connection: psycopg.Connection[Any], ids: Sequence[int], type_: str | None, group: str | None, states: list[str]
) -> int:
    given = {"ids": list(ids) or None, "type": type_, "group": group, "states": states}
    found, busy = _carry_out(connection, "jobs/cancel", given)
    groups = sorted({row[1] for row in found if row[1] is not None})
    with connection.transaction():  # its snapshot is younger than the commit above, so that it sees all jobs that wait
        connection.execute(query("jobs/next_of_groups"), {"groups": groups})
        connection.execute(query("jobs/notify"))
    return _counted(found, busy)


def _carry_out(connection: psycopg.Connection[Any], name: str, given: dict[str, Any]) -> tuple[list[Any], list[int]]:
    """Carry out an order for all jobs that no transaction has locked, then for each of the others in its own one.

    A transaction that waits for a job holds no other, so that it can't deadlock with a round of an executor.
    Return the rows of jobs that are done, and the ids of those that were locked until the time-out.
    """
    found = connection.execute(query(name), given).fetchall()
    busy = [row[0] for row in found if row[2]]
    found = [row for row in found if not row[2]]
    for number, job in enumerate(busy):
        try:
            with connection.transaction():
                connection.execute(query("jobs/lock"), {"id": job})
                found += connection.execute(query(name), given | {"ids": [job]}).fetchall()
        except psycopg.errors.LockNotAvailable:
            return found, busy[number:]
    return found, []


def _counted(found: list[Any], busy: list[int]) -> int:
    """How many jobs are done. Raises OrderRefused where some stayed locked."""
    if busy:
        names = ", ".join(map(str, busy[:10])) + (", …" if len(busy) > 10 else "")
        raise OrderRefused(
            f"{len(busy)} of {len(found) + len(busy)} jobs {'is' if len(busy) == 1 else 'are'} locked by another"
            f" transaction, the others are done: try again once it has ended, with {names}"
        )
    return len(found)
