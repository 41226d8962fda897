"""Operators' functions about jobs: find, count, change (run now, retry, cancel, discard), pause and resume.

`change_jobs` takes ids, a filter, or both, and changes the matching jobs newest first, at most 10,000 in a transaction.
Each transaction writes a line of the operator log; ``by`` is who acts, by default the user of the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson
import psycopg
from psycopg.rows import class_row, tuple_row

from compactory.errors import ConfigError, OrderRefused
from compactory_connectors.postgres.operator_log import log_act
from compactory_connectors.postgres.pausing import PausableKind, PauseResult, set_paused, unseen
from compactory_sql import query

from .job import TENANT

__all__ = [
    "CHANGEABLE_STATES",
    "STATES",
    "Act",
    "JobCount",
    "JobFilter",
    "JobRow",
    "change_jobs",
    "count_jobs",
    "jobs_where",
    "pause",
    "resume",
]

STATES: Final = ("scheduled", "running", "succeeded", "failed", "cancelled")

# Cursors of these queries send values in their text, so that Postgres plans partition and index for the filter.
_LIST = query("jobs/list")
_IDS = f"SELECT id FROM ({_LIST}) AS j"  # noqa: S608 (a query of this project)
_COUNT = f"SELECT count(*) FROM ({_LIST}) AS j"  # noqa: S608

_COUNTED = 10_000  # jobs that are counted; the number of more jobs is estimated
_PAGE = 10_000  # jobs that one transaction changes


class Act(StrEnum):
    """A change of jobs."""

    RUN_NOW = "run-now"
    """Make jobs due that wait for their time or for a retry. They still wait for earlier jobs of their groups."""
    RETRY = "retry"
    """Schedule failed jobs again from their first attempt. By id or by ``state`` of the filter also cancelled jobs
    and jobs that wait for a retry."""
    CANCEL = "cancel"
    """Cancel scheduled jobs; ask running jobs to end, and cancel them when they do."""
    DISCARD = "discard"
    """Cancel failed jobs, so that their groups continue."""


_STATEMENTS = {
    Act.RUN_NOW: "jobs/run_now",
    Act.RETRY: "jobs/retry",
    Act.CANCEL: "jobs/cancel",
    Act.DISCARD: "jobs/cancel",
}

CHANGEABLE_STATES: Final = {
    Act.RUN_NOW: ("scheduled",),
    Act.RETRY: ("failed", "cancelled", "scheduled"),
    Act.CANCEL: ("scheduled", "running"),
    Act.DISCARD: ("failed",),
}
"""States of the jobs that an act can change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """A filter of jobs: a job matches if it fits every field that is not None.

    ``since`` (included) and ``until`` (excluded) limit the time at which a job was enqueued. ``payload`` is JSON text
    that the payload of a job contains, as ``@>`` of Postgres compares. Raises ConfigError for an unknown state, a time
    without a zone, and a payload that is no JSON.
    """

    state: str | None = None
    type: str | None = None
    group: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    payload: str | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise ConfigError(f"unknown state {self.state!r}: choose {', '.join(STATES)}")
        for time in (self.since, self.until):
            if time is not None and time.tzinfo is None:
                raise ConfigError(f"the time {time} has no zone: add one, such as +00:00")
        if self.payload is not None:
            try:
                orjson.loads(self.payload)
            except orjson.JSONDecodeError as error:
                raise ConfigError(f"payload {self.payload!r} is no JSON: {error}") from error


_EVERY_JOB = JobFilter()


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


class JobCount(NamedTuple):
    """A number of jobs: exact up to 10,000, else the estimate of Postgres."""

    jobs: int
    is_exact: bool


def jobs_where(
    connection: psycopg.Connection[Any],
    ids: Sequence[int] | None = None,
    where: JobFilter = _EVERY_JOB,
    *,
    before_id: int | None = None,
    limit: int = 100,
) -> list[JobRow]:
    """Return jobs, newest first. ``before_id``: only jobs with lower ids, to read on after a full page.

    Raises psycopg.Error.
    """
    parameters = _parameters(ids, where) | {"before_id": before_id, "limit": limit}
    return psycopg.ClientCursor(connection, row_factory=class_row(JobRow)).execute(_LIST, parameters).fetchall()


def count_jobs(connection: psycopg.Connection[Any], where: JobFilter = _EVERY_JOB, act: Act | None = None) -> JobCount:
    """Return the number of jobs that match; with an act, of those that it would change.

    Raises ConfigError if the act can't change jobs of the filter's state, psycopg.Error.
    """
    parameters, cursor = _parameters(None, where, act), psycopg.ClientCursor(connection, row_factory=tuple_row)
    row = cursor.execute(_COUNT, parameters | {"limit": _COUNTED + 1}).fetchone()
    assert row is not None
    if row[0] <= _COUNTED:
        return JobCount(row[0], is_exact=True)
    plan = cursor.execute(f"EXPLAIN (FORMAT JSON) {_LIST}", parameters).fetchone()
    assert plan is not None
    return JobCount(max(row[0], plan[0][0]["Plan"]["Plan Rows"]), is_exact=False)


def change_jobs(
    connection: psycopg.Connection[Any],
    act: Act,
    ids: Sequence[int] | None = None,
    where: JobFilter = _EVERY_JOB,
    *,
    by: str | None = None,
) -> int:
    """Change the jobs that match, as `Act` says. Return their number.

    Raises ConfigError if the act can't change jobs of the filter's state. Raises OrderRefused after the other jobs were
    changed, if jobs stay locked by other transactions, or if a newer job has the unique key of a job. Raises
    psycopg.Error.
    """
    change = _Change(connection, act, ids, where, by)
    try:
        locked = change.run()
    finally:
        change.wake_executors()
    if locked:
        names = ", ".join(map(str, locked[:10])) + (", …" if len(locked) > 10 else "")
        raise OrderRefused(
            f"{len(locked)} of {change.count + len(locked)} jobs {'is' if len(locked) == 1 else 'are'} locked by"
            f" another transaction, the others are done: try again once it has ended, with {names}"
        )
    return change.count


def pause(
    connection: psycopg.Connection[Any], type_: str | None = None, *, group: str | None = None, by: str | None = None
) -> PauseResult:
    """Pause a type or a group: executors start no such jobs within a second. Running jobs end normally.

    A paused job keeps its place in its group, so later jobs of the group wait. Raises ConfigError unless one of type
    and group is given, psycopg.Error.
    """
    kind, name = _pausable(type_, group)
    if kind == "jobs":
        warning = unseen("type", name, (row[0] for row in connection.execute(query("jobs/types"))))
    else:
        names = [row[0] for row in connection.execute(query("jobs/group"), {"group": name})]
        warning = unseen("group", name, names)
    return PauseResult(set_paused(connection, kind, name, by, is_paused=True), warning)


def resume(
    connection: psycopg.Connection[Any], type_: str | None = None, *, group: str | None = None, by: str | None = None
) -> bool:
    """Resume a type or a group. Return False if it was not paused. Raises as `pause` does."""
    return set_paused(connection, *_pausable(type_, group), by, is_paused=False)


def _pausable(type_: str | None, group: str | None) -> tuple[PausableKind, str]:
    if bool(type_) == bool(group):
        raise ConfigError("give a type or a group of jobs, and not both")
    return ("jobs", type_) if type_ else ("job-groups", group or "")


def _parameters(ids: Sequence[int] | None, where: JobFilter, act: Act | None = None) -> dict[str, Any]:
    """Return the parameters of jobs/list. Raises ConfigError if the act can't change jobs of the filter's state."""
    states = CHANGEABLE_STATES[act] if act else STATES
    if where.state is not None:
        if where.state not in states:
            raise ConfigError(f"{act} changes no {where.state} jobs: choose {' or '.join(states)}")
        states = (where.state,)
    elif act is Act.RETRY and ids is None:
        states = ("failed",)
    return asdict(where) | {
        "ids": None if ids is None else list(ids),
        "states": list(states),
        "header": TENANT,
        "act": act,
        "before_id": None,
        "limit": None,
    }


class _Change:
    """A change of jobs by an operator, in several transactions."""

    def __init__(
        self, connection: psycopg.Connection[Any], act: Act, ids: Sequence[int] | None, where: JobFilter, by: str | None
    ) -> None:
        self._connection = connection
        self._act = act
        self._by = by
        self._parameters = _parameters(ids, where, act)
        self._target = asdict(where)
        self._names_ids = ids is not None
        self._groups: set[str] = set()  # whose first job may be gone
        self.count = 0

    def run(self) -> list[int]:
        """Change all jobs that are not locked, then each locked job in its own transaction.

        A transaction that waits for a job has locked no other job, so it can't deadlock with an executor. Return the
        jobs that stayed locked until the time-out. Raises OrderRefused if another job has the unique key of a job.
        """
        locked: list[int] = []
        page: list[int] = []
        try:
            for page in _pages(self._connection, self._parameters):
                with self._connection.transaction():
                    locked += self._change(page)
            for number, job in enumerate(locked):
                page = [job]
                try:
                    with self._connection.transaction():
                        self._connection.execute(query("jobs/lock"), {"id": job})
                        self._change(page)
                except psycopg.errors.LockNotAvailable:
                    return locked[number:]
        except psycopg.errors.UniqueViolation as error:
            name = f"job {page[0]}" if len(page) == 1 else f"one of {len(page)} jobs"
            raise OrderRefused(
                f"another job has the unique key of {name} by now, {self.count} other jobs are done: cancel or"
                f" discard one of them first ({error.diag.message_detail})"
            ) from error
        return []

    def _change(self, page: list[int]) -> list[int]:
        """Change jobs in the open transaction. Return those that are locked."""
        rows = self._connection.execute(query("jobs/lock_free"), self._parameters | {"ids": page}).fetchall()
        ids = sorted(job for job, is_busy in rows if not is_busy)
        changed = self._connection.execute(query(_STATEMENTS[self._act]), self._parameters | {"ids": ids}).fetchall()
        target = self._target | {"ids": sorted(row[0] for row in changed) if self._names_ids else None}
        log_act(self._connection, "jobs", self._act, target, len(changed), self._by)
        self.count += len(changed)
        self._groups |= {group for _, group in changed if group is not None}
        return [job for job, is_busy in rows if is_busy]

    def wake_executors(self) -> None:
        """Make the next jobs of the groups due. The snapshot is newer than the changes, so it has every waiting job."""
        with self._connection.transaction():
            self._connection.execute(query("jobs/next_of_groups"), {"groups": sorted(self._groups)})
            self._connection.execute(query("jobs/notify"))


def _pages(connection: psycopg.Connection[Any], parameters: dict[str, Any]) -> Iterator[list[int]]:
    """Yield the ids of the jobs that match, newest first. A job that the act has changed is not read again."""
    cursor = psycopg.ClientCursor(connection, row_factory=tuple_row)
    before_id = None
    while True:
        keyset = parameters | {"before_id": before_id, "limit": _PAGE}
        page = [row[0] for row in cursor.execute(_IDS, keyset)]
        if page:
            yield page
        if len(page) < _PAGE:
            return
        before_id = page[-1]
