"""The tables of jobs as the keeper of one executor uses them: claims, ends of attempts, heartbeats, rescues."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import psycopg
from psycopg.rows import tuple_row

from compactory_connectors.postgres.position import Position
from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import JOB_GROUP_LOCK_CLASS, query

__all__ = [
    "TTL",
    "Assigned",
    "Batch",
    "Chain",
    "Claimed",
    "Executors",
    "JobTable",
    "Outcome",
    "Request",
    "executor_of",
    "open_jobs",
    "outcomes_json",
]

TTL: Final = 10.0
"""Seconds without a heartbeat after which an executor is taken for dead."""

SPREAD: Final = 5.0
"""Seconds over which the jobs of a dead executor come back, at their first rescue."""

_JOBS = Part(name="jobs", needs="jobs need", installed="jobs are", may="run jobs")

_PROMOTED = 1000  # jobs that have come due and get a position at once
_LATE = timedelta(seconds=60)  # a job whose transaction took longer may be found late when it comes due


class Assigned(NamedTuple):
    """The partitions that an executor runs jobs of, and how many there are in all."""

    partitions: tuple[int, ...]
    of: int


class Claimed(NamedTuple):
    """A job that was claimed, as its row has it."""

    id: int
    type: str
    group: str | None
    origin: str | None
    place: int
    attempt: int
    token: int
    rescues: int
    cancelling: bool
    payload: str
    headers: Mapping[str, str] | None
    run_at: datetime
    created_at: datetime


Chain: TypeAlias = list[Claimed]
"""Jobs of one group in their order, or one job without a group."""


@dataclass(slots=True, kw_only=True)  # not frozen: that takes four times as long to make
class Outcome:
    """How an attempt ended: the job's next ``state``; ``delay`` in seconds where that is ``scheduled``.

    ``refund`` 1: the attempt does not count. ``holds``: later jobs of the group wait.
    """

    id: int
    token: int
    state: str
    delay: float = 0.0
    error: str | None = None
    holds: bool = True
    refund: int = 0

    @classmethod
    def back(cls, job: Claimed, delay: float = 0.0) -> Outcome:
        """A job that is handed back as if it had not been claimed."""
        return cls(id=job.id, token=job.token, state="scheduled", delay=delay, refund=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A claim: at most ``limit`` jobs without a group (0: none of any kind), ``depth`` of each group.

    A job of ours has ended in each of the ``freed`` groups: if the next one is another executor's, it is shown to it.
    """

    limit: int
    groups: Sequence[str] = ()
    freed: Sequence[str] = ()
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The result of a claim. ``found``: groups with due jobs.

    ``refused``: groups that another executor was claiming from; look at them again.
    """

    position: Position
    chains: list[Chain] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    refused: frozenset[str] = frozenset()
    full: bool = False
    later: float | None = None


@dataclass(frozen=True, slots=True)
class Executors:
    """Registered executors: ids of our pool in order, all ids, and ids of executors with a lapsed heartbeat."""

    pool: tuple[int, ...]
    all: tuple[int, ...]
    lapsed: tuple[int, ...]
    registered: bool


class JobTable:
    """Statements of one executor. Owned by one thread. Raises psycopg.Error."""

    def __init__(self, connection: WatchedConnection, executor: int, name: str, types: Sequence[str]) -> None:
        self.executor = executor
        self._name = name
        self.until = 0.0
        """time.monotonic() until when no other executor takes this one for dead."""
        self._connection = connection
        self._tokens = itertools.count(executor << 32)
        self._given: dict[str, Any] = {"executor": executor, "types": list(types), "class": JOB_GROUP_LOCK_CLASS}
        self._whole_at: datetime | None = None  # when all jobs that wait for their time were last looked through

    def newest(self) -> int:
        """The newest number that was given to a job or a position."""
        row = self._connection.execute(query("jobs/newest")).fetchone()
        return row[0] if row is not None else 0

    def finish(self, outcomes: Sequence[Outcome]) -> frozenset[int]:
        """End attempts, in one transaction; the ids of those that were still ours."""
        with self._connection.pipeline():
            ended = self._connection.execute(query("jobs/finish"), outcomes_json(outcomes))
            if any(outcome.state == "scheduled" and not outcome.delay for outcome in outcomes):
                self._connection.execute(query("jobs/notify"))
        return frozenset(itertools.chain.from_iterable(ended.fetchall()))

    def claim(self, request: Request, assigned: Assigned, position: Position) -> Batch:
        """Find jobs that have come due and claim jobs, in one transaction and one round trip."""
        given = self._given | {
            "partitions": f"{{{','.join(map(str, assigned.partitions))}}}",  # psycopg takes ten times as long
            "of": assigned.of,
            "token": next(self._tokens),
            "start": position.start,
            "running": [str(xid) for xid in position.running],
            "lows": list(position.running.values()),
            "limit": request.limit,
            "groups": list(request.groups),
            "freed": list(request.freed),
            "depth": request.depth,
        }
        claimed = self._connection.cursor(row_factory=tuple_row)
        grouped = self._connection.cursor(row_factory=tuple_row)
        with self._connection.pipeline():  # one transaction, which ends with it
            promoted = self._connection.execute(
                query("jobs/promote"), given | {"since": self._since(), "most": _PROMOTED}
            )
            claimed.execute(query("jobs/claim"), given)
            if request.groups:
                self._connection.execute(query("jobs/lock_groups"), given)
                self._connection.execute(query("jobs/supersede"))
                grouped.execute(query("jobs/claim_groups"), given)
        batch = self._read(Batch(position=position), *_claimed(claimed), more_due=promoted.rowcount == _PROMOTED)
        if request.groups:
            locked, jobs = _claimed(grouped)
            refused = frozenset(request.groups).difference(locked["locked"])
            batch = replace(batch, chains=batch.chains + _chains(jobs), refused=refused)
        return batch

    def resume(self, session: str, held: Iterable[int]) -> bool:
        """Go on after the connection was lost, and give back jobs of claims whose answer was lost; False: not yet."""
        left = self._connection.execute(query("jobs/fence_keeper"), {"session": session}).fetchone()
        if left != (0,):
            return False
        self._connection.execute(query("jobs/return_unreceived"), {"executor": self.executor, "held": list(held)})
        return True

    @classmethod
    def register(cls, connection: WatchedConnection, name: str, pool: str, types: Sequence[str]) -> JobTable:
        """A new executor."""
        began = time.monotonic()
        row = connection.execute(query("jobs/register"), {"name": name, "pool": pool, "types": list(types)}).fetchone()
        assert row is not None
        table = cls(connection, row[0], name, types)
        table.until = began + TTL
        return table

    def beat(self, pool: str) -> Executors:
        """Renew the heartbeat and look at all executors."""
        began = time.monotonic()
        given = {"executor": self.executor, "name": self._name, "ttl": timedelta(seconds=TTL)}
        rows = self._connection.execute(query("jobs/beat"), given).fetchall()
        registered = any(row[2] for row in rows)
        self.until = began + TTL if registered else 0.0
        return Executors(
            tuple(row[0] for row in rows if row[1] == pool and not row[3]),
            tuple(row[0] for row in rows),
            tuple(row[0] for row in rows if row[3]),
            registered,
        )

    def bury(self, executor: int) -> bool:
        """Declare an executor dead, and begin to end its sessions; False: it has renewed its heartbeat meanwhile."""
        given = {"executor": executor, "ttl": timedelta(seconds=TTL)}
        with self._connection.transaction():
            buried = self._connection.execute(query("jobs/unregister_expired"), given).rowcount > 0
            if buried:
                self._connection.execute(query("jobs/fence"), given)
        return buried

    def end_sessions(self, pids: Sequence[int]) -> set[int]:
        """End sessions of our handlers; those that have not ended yet."""
        given = {"executor": self.executor, "pids": list(pids)}
        return {row[0] for row in self._connection.execute(query("jobs/fence_handlers"), given)}

    def orphans(self) -> list[int]:
        """Executors that jobs name as theirs, and that are not registered."""
        return [row[0] for row in self._connection.execute(query("jobs/orphans"))]

    def rescue(self, executor: int) -> list[tuple[int, str, str]] | None:
        """Take back the jobs of a dead executor: id, type and state of each; None while its sessions have not ended."""
        left = self._connection.execute(query("jobs/fence"), {"executor": executor}).fetchone()
        if left != (0,):
            return None
        given = {"executor": executor, "spread": timedelta(seconds=SPREAD)}
        return self._connection.execute(query("jobs/rescue"), given).fetchall()

    def cancelling(self, jobs: Sequence[int]) -> set[int]:
        """Those of our jobs that an operator wants to end."""
        return {row[0] for row in self._connection.execute(query("jobs/cancelling"), {"ids": list(jobs)})}

    def tick(self, name: str, tick: datetime, enqueue: Callable[[psycopg.Connection[Any]], object]) -> None:
        """Enqueue a periodic job, unless another executor has for this tick."""
        with self._connection.transaction():
            given = {"name": name, "tick": tick}
            if self._connection.execute(query("jobs/take_tick"), given).fetchone() is not None:
                enqueue(self._connection)

    def expire(self, keep: timedelta) -> int:
        """Forget finished jobs that are older; how many there were this time."""
        return self._connection.execute(query("jobs/expire"), {"keep": keep}).rowcount

    def unregister(self) -> None:
        """Leave: nothing is claimed any more."""
        self._connection.execute(query("jobs/unregister"), {"executor": self.executor})
        self._connection.execute(query("jobs/notify"))

    def look_again(self) -> None:
        """Look through all jobs that wait for their time."""
        self._whole_at = None

    def clock(self) -> datetime:
        """The time of Postgres."""
        row = self._connection.execute(query("jobs/clock")).fetchone()
        assert row is not None
        found: datetime = row[0]
        return found

    def _since(self) -> str | datetime:
        return "-infinity" if self._whole_at is None else self._whole_at - _LATE

    def _read(self, batch: Batch, facts: dict[str, Any], jobs: list[Claimed], *, more_due: bool) -> Batch:
        """Return the batch with the result of a claim. ``more_due``: further jobs have come due, however long ago."""
        clock = datetime.fromisoformat(facts["clock"])
        if more_due:
            self._whole_at = None
        elif self._whole_at is None or abs(clock - self._whole_at) > _LATE:
            self._whole_at = clock if self._whole_at is None else None
        position = batch.position
        if not facts["skipped"]:
            running = Snapshot.parse(facts["snapshot"]).running(int(facts["own"]))
            position = position.after(running, facts["newest"], facts["last"])
        return replace(
            batch,
            chains=[[job] for job in jobs],
            found=facts["groups"],
            position=position,
            full=facts["last"] is not None or more_due,
            later=facts["later"],
        )


def outcomes_json(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The parameters of jobs/finish."""
    return {"outcomes": orjson.dumps(outcomes).decode()}


def executor_of(job: Claimed) -> int:
    """The executor that claimed a job."""
    return job.token >> 32


def _claimed(cursor: psycopg.Cursor[Any]) -> tuple[dict[str, Any], list[Claimed]]:
    """The facts in the first row, and the jobs in the others."""
    rows = cursor.fetchall()
    return rows[0][10], [Claimed(*row) for row in rows[1:]]


def _chains(jobs: Iterable[Claimed]) -> list[Chain]:
    """Jobs of groups, by group and in their order."""
    chains: dict[str | None, Chain] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        chains.setdefault(job.group, []).append(job)
    return list(chains.values())


def open_jobs(conninfo: Mapping[str, Any], purpose: str) -> WatchedConnection:
    """A connection in autocommit to a database with jobs; see `open_part`."""
    connection, _ = open_part(conninfo, _JOBS, purpose)
    return connection
