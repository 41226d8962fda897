"""The statements of a keeper: claims, outcomes, heartbeats, rescues."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import psycopg
from psycopg.rows import class_row, tuple_row

from compactory_connectors.postgres.position import Position
from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import JOB_GROUP_LOCK_CLASS, JOB_LIMIT_LOCK_CLASS, query

from .limits import JobLimit, LimitedType

__all__ = [
    "TTL",
    "Assigned",
    "Batch",
    "Chain",
    "Claimed",
    "Commit",
    "Executors",
    "JobTable",
    "Outcome",
    "Request",
    "executor_of",
    "limits_in_force",
    "open_jobs",
    "outcomes_json",
]

TTL: Final = 10.0
"""Seconds without a heartbeat after which the lease of an executor expires."""

SPREAD: Final = 5.0
"""Seconds over which rescued jobs become due, at their first rescue."""

_JOBS = Part(name="jobs", needs="jobs need", installed="jobs are", may="run jobs")

_GROUPS = 100  # groups of a limited type that are claimed from at once
_LOCKED = 0.005  # seconds until a claim after another executor had locked the limit
_PROMOTED = 1000  # due jobs that get a position at once
_LATE = timedelta(seconds=60)  # a job of a longer transaction may be found late when it is due


class Assigned(NamedTuple):
    """The partitions of an executor; ``of`` is the number of all partitions."""

    partitions: tuple[int, ...]
    of: int


class Claimed(NamedTuple):
    """A claimed job, with the columns of its row."""

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
    """The outcome of an attempt: the next ``state`` of the job, and the ``delay`` in seconds if it is ``scheduled``.

    ``refund`` 1: the attempt does not count. ``holds``: later jobs of the group wait. Without ``history`` a job that
    succeeds is deleted.
    """

    id: int
    token: int
    state: str
    delay: float = 0.0
    error: str | None = None
    holds: bool = True
    refund: int = 0
    history: bool = True

    @classmethod
    def back(cls, job: Claimed, delay: float = 0.0) -> Outcome:
        """Return the outcome that schedules a job again as if it had not been claimed."""
        return cls(id=job.id, token=job.token, state="scheduled", delay=delay, refund=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A claim: at most ``limit`` jobs without a group (0: claim nothing), ``depth`` of each group.

    In each of the ``freed`` groups a job of this executor has ended. If the next job of the group belongs to another
    executor, it becomes due again, so that the other executor finds it.
    """

    limit: int
    groups: Sequence[str] = ()
    freed: Sequence[str] = ()
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The result of a claim. ``due_groups``: groups with due jobs. ``full``: there may be more jobs.

    ``refused``: groups that another executor was claiming from; claim again. ``next_due``: seconds until a job is due.
    """

    position: Position
    chains: list[Chain] = field(default_factory=list)
    due_groups: list[str] = field(default_factory=list)
    refused: frozenset[str] = frozenset()
    full: bool = False
    next_due: float | None = None


@dataclass(slots=True)
class Commit:
    """The commit of outcomes. ``ids``: the jobs that this executor still had; None: not committed."""

    ids: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Executors:
    """Ids of registered executors: all, of the pool, with a lapsed heartbeat. ``registered``: this one is."""

    pool: tuple[int, ...]
    ids: tuple[int, ...]
    lapsed: tuple[int, ...]
    registered: bool


class JobTable:
    """The statements of one executor. Owned by one thread. Raises psycopg.Error."""

    def __init__(
        self,
        connection: WatchedConnection,
        ends_connection: WatchedConnection,
        executor: int,
        name: str,
        types: Sequence[str],
    ) -> None:
        self.executor = executor
        self._name = name
        self.until = 0.0
        """The end of the lease, by the monotonic clock."""
        self._connection = connection
        self._ends_connection = ends_connection
        self._tokens = itertools.count(executor << 32)
        self._types = list(types)
        self._parameters: dict[str, Any] = {"executor": executor, "types": self._types, "class": JOB_GROUP_LOCK_CLASS}
        self._parameters["limited"] = None
        self.leave_out((), ())
        self._whole_at: datetime | None = None  # when all jobs that are not due were last read

    def leave_out(self, paused_types: Collection[str], paused_groups: Collection[str]) -> None:
        """Claim no jobs of these types and groups. They still get positions when they are due."""
        claimed_types = [name for name in self._types if name not in paused_types]
        self._parameters |= {"claimed_types": claimed_types, "paused_groups": list(paused_groups)}

    def newest(self) -> int:
        """Return the newest number of a job or a position."""
        row = self._connection.execute(query("jobs/newest")).fetchone()
        return row[0] if row is not None else 0

    @contextmanager
    def finish(self, outcomes: Sequence[Outcome], commit: Commit) -> Iterator[None]:
        """Commit outcomes in one transaction of a second connection, while the body claims further jobs.

        The commit is complete at the end of the body, also if that raises.
        """
        if not outcomes:
            commit.ids = frozenset()
            yield
            return
        error: psycopg.Error | None = None
        with self._ends_connection.pipeline():  # the server begins at once; the end of the pipeline commits
            ended = self._ends_connection.execute(query("jobs/finish"), outcomes_json(outcomes))
            if any(outcome.state == "scheduled" and not outcome.delay for outcome in outcomes):
                self._ends_connection.execute(query("jobs/notify"))
            try:
                yield
            except psycopg.Error as raised:
                error = raised
        commit.ids = frozenset(itertools.chain.from_iterable(ended.fetchall()))
        if error is not None:
            raise error

    def claim(self, request: Request, assigned: Assigned, position: Position) -> Batch:
        """Find due jobs and claim jobs, in one transaction and one round trip."""
        parameters = self._claim_parameters(assigned, position) | {
            "limit": request.limit,
            "groups": list(request.groups),
            "freed": list(request.freed),
            "depth": request.depth,
        }
        claimed = self._connection.cursor(row_factory=tuple_row)
        grouped = self._connection.cursor(row_factory=tuple_row)
        with self._connection.pipeline():  # one transaction, which ends with it
            promoted = self._connection.execute(
                query("jobs/promote"), parameters | {"since": self._since(), "most": _PROMOTED}
            )
            claimed.execute(query("jobs/claim"), parameters)
            if request.groups:
                self._connection.execute(query("jobs/lock_groups"), parameters)
                self._connection.execute(query("jobs/supersede"))
                grouped.execute(query("jobs/claim_groups"), parameters)
        state, jobs = _claimed(claimed)
        more_due = promoted.rowcount == _PROMOTED
        self._note_promoted(datetime.fromisoformat(state["clock"]), more_due=more_due)
        batch = self._read(Batch(position=position), state, jobs, more_due=more_due)
        if request.groups:
            batch = _add_groups(batch, request.groups, grouped)
        return batch

    def declare_limits(self, limits: Iterable[JobLimit]) -> None:
        """Keep the limits of this executor's handlers for all executors."""
        declared = orjson.dumps([limit.parameters() for limit in limits]).decode()
        self._connection.execute(query("jobs/declare_limits"), {"executor": self.executor, "limits": declared})

    def limits(self) -> list[JobLimit]:
        """Return the limits in force for types of this executor."""
        return [limit for limit in limits_in_force(self._connection) if limit.type in self._types]

    def mark_limited(self, types: Iterable[str]) -> None:
        """Count running jobs of this executor whose types have a limit now."""
        parameters = {"executor": self.executor, "types": list(types)}
        self._connection.execute(query("jobs/mark_limited"), parameters)

    def notify_slot(self) -> None:
        """Wake executors that wait for the end of a limited job."""
        self._connection.execute(query("jobs/notify_slot"))

    def claim_limited(self, item: LimitedType, room: int, assigned: Assigned) -> Batch | float | None:
        """Claim at most ``room`` jobs of a limited type, in one transaction that has locked the limit.

        Return the seconds until the type may be claimed from, None if as many jobs run as may.
        """
        with self._connection.transaction():
            limit = item.limit.parameters()
            lock = limit | {"class": JOB_LIMIT_LOCK_CLASS}
            if self._connection.execute(query("jobs/lock_limit"), lock).fetchone() != (True,):
                return _LOCKED
            row = self._connection.execute(query("jobs/limit_room"), limit).fetchone()
            assert row is not None
            if row[0] <= 0:
                next_due: float | None = row[1]
                return next_due
            batch = self._claim_of_type(item, min(row[0], room), assigned)
            starts = sum(map(len, batch.chains))
            if starts and item.limit.rate_count is not None:
                self._connection.execute(query("jobs/count_starts"), limit | {"starts": starts})
        return batch

    def _claim_of_type(self, item: LimitedType, count: int, assigned: Assigned) -> Batch:
        """Claim jobs of one type: the first ones of known groups, else those after the position."""
        groups = item.next_groups(min(count, _GROUPS))
        parameters = self._claim_parameters(assigned, item.position) | {
            "claimed_types": [item.limit.type], "limited": True, "limit": count,
            "groups": groups, "freed": [], "depth": 1,
        }  # fmt: skip
        cursor = self._connection.cursor(row_factory=tuple_row)
        if not groups:
            cursor.execute(query("jobs/claim"), parameters)
            return self._read(Batch(position=item.position), *_claimed(cursor), more_due=False)
        with self._connection.pipeline():
            self._connection.execute(query("jobs/lock_groups"), parameters)
            self._connection.execute(query("jobs/supersede"))
            cursor.execute(query("jobs/claim_groups"), parameters)
        return _add_groups(Batch(position=item.position), groups, cursor)

    def _claim_parameters(self, assigned: Assigned, position: Position) -> dict[str, Any]:
        return self._parameters | {
            "partitions": f"{{{','.join(map(str, assigned.partitions))}}}",  # psycopg takes ten times as long
            "of": assigned.of,
            "token": next(self._tokens),
            "start": position.start,
            "running": [str(xid) for xid in position.running],
            "lows": list(position.running.values()),
        }

    def resume(self, session: str, claimed: Iterable[int]) -> bool:
        """Continue after a lost connection, and return jobs whose claim was lost. False: the old session runs."""
        sessions = self._connection.execute(query("jobs/fence_keeper"), {"session": session}).fetchone()
        if sessions != (0,):
            return False
        self._connection.execute(query("jobs/return_unreceived"), {"executor": self.executor, "held": list(claimed)})
        return True

    @classmethod
    def register(
        cls,
        connection: WatchedConnection,
        ends_connection: WatchedConnection,
        name: str,
        pool: str,
        types: Sequence[str],
    ) -> JobTable:
        """Register a new executor; return its table."""
        begun_at = time.monotonic()
        row = connection.execute(query("jobs/register"), {"name": name, "pool": pool, "types": list(types)}).fetchone()
        assert row is not None
        table = cls(connection, ends_connection, row[0], name, types)
        table.until = begun_at + TTL
        return table

    def beat(self, pool: str) -> Executors:
        """Renew the heartbeat; return all executors."""
        begun_at = time.monotonic()
        parameters = {"executor": self.executor, "name": self._name, "ttl": timedelta(seconds=TTL)}
        rows = self._connection.execute(query("jobs/beat"), parameters).fetchall()
        registered = any(row[2] for row in rows)
        self.until = begun_at + TTL if registered else 0.0
        return Executors(
            tuple(row[0] for row in rows if row[1] == pool and not row[3]),
            tuple(row[0] for row in rows),
            tuple(row[0] for row in rows if row[3]),
            registered,
        )

    def expire_executor(self, executor: int) -> bool:
        """Unregister an executor and start to end its sessions. Return False if it has renewed its heartbeat."""
        parameters = {"executor": executor, "ttl": timedelta(seconds=TTL)}
        with self._connection.transaction():
            has_expired = self._connection.execute(query("jobs/unregister_expired"), parameters).rowcount > 0
            if has_expired:
                self._connection.execute(query("jobs/fence"), parameters)
        return has_expired

    def end_sessions(self, pids: Sequence[int]) -> set[int]:
        """End sessions of handlers; return the pids that still run."""
        parameters = {"executor": self.executor, "pids": list(pids)}
        return {row[0] for row in self._connection.execute(query("jobs/fence_handlers"), parameters)}

    def orphans(self) -> list[int]:
        """Return executors that have jobs and are not registered."""
        return [row[0] for row in self._connection.execute(query("jobs/orphans"))]

    def rescue(self, executor: int) -> list[tuple[int, str, str]] | None:
        """Rescue the jobs of an expired executor; return id, type and state of each. None: its sessions still run."""
        sessions = self._connection.execute(query("jobs/fence"), {"executor": executor}).fetchone()
        if sessions != (0,):
            return None
        parameters = {"executor": executor, "spread": timedelta(seconds=SPREAD)}
        return self._connection.execute(query("jobs/rescue"), parameters).fetchall()

    def cancelling(self, jobs: Sequence[int]) -> set[int]:
        """Return the jobs of this list that an operator has cancelled."""
        return {row[0] for row in self._connection.execute(query("jobs/cancelling"), {"ids": list(jobs)})}

    def tick(self, name: str, tick: datetime, enqueue: Callable[[psycopg.Connection[Any]], object]) -> None:
        """Enqueue a periodic job, unless another executor has done that for the tick."""
        with self._connection.transaction():
            parameters = {"name": name, "tick": tick}
            if self._connection.execute(query("jobs/take_tick"), parameters).fetchone() is not None:
                enqueue(self._connection)

    def expire(self, keep: timedelta) -> int:
        """Delete finished jobs that are older than ``keep``, up to a limit; return their number."""
        return self._connection.execute(query("jobs/expire"), {"keep": keep}).rowcount

    def unregister(self) -> None:
        """Unregister the executor, and notify the others."""
        self._connection.execute(query("jobs/unregister"), {"executor": self.executor})
        self._connection.execute(query("jobs/notify"))

    def read_whole(self) -> None:
        """Make the next claim read all jobs that are not due."""
        self._whole_at = None

    def clock(self) -> datetime:
        """Return the time of Postgres."""
        row = self._connection.execute(query("jobs/clock")).fetchone()
        assert row is not None
        clock: datetime = row[0]
        return clock

    def _since(self) -> str | datetime:
        return "-infinity" if self._whole_at is None else self._whole_at - _LATE

    def _note_promoted(self, clock: datetime, *, more_due: bool) -> None:
        """Record which due jobs have got positions. ``more_due``: there are more of them."""
        if more_due:
            self._whole_at = None
        elif self._whole_at is None or abs(clock - self._whole_at) > _LATE:
            self._whole_at = clock if self._whole_at is None else None

    def _read(self, batch: Batch, state: dict[str, Any], jobs: list[Claimed], *, more_due: bool) -> Batch:
        """Return the batch with the result of a claim. ``more_due``: there are more due jobs."""
        position = batch.position
        if not state["skipped"]:
            running = Snapshot.parse(state["snapshot"]).running(int(state["own"]))
            position = position.after(running, state["newest"], state["last"])
        return replace(
            batch,
            chains=[[job] for job in jobs],
            due_groups=state["groups"],
            position=position,
            full=state["last"] is not None or more_due,
            next_due=state["later"],
        )


def outcomes_json(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the parameters of jobs/finish."""
    return {"outcomes": orjson.dumps(outcomes).decode()}


def executor_of(job: Claimed) -> int:
    """Return the executor that claimed a job."""
    return job.token >> 32


def _claimed(cursor: psycopg.Cursor[Any]) -> tuple[dict[str, Any], list[Claimed]]:
    """Return the state in the first row, and the jobs in the other rows."""
    rows = cursor.fetchall()
    return rows[0][10], [Claimed(*row) for row in rows[1:]]


def limits_in_force(connection: psycopg.Connection[Any]) -> list[JobLimit]:
    """Return the limits of all types: those of operators, and of handlers for other types. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(JobLimit)).execute(query("jobs/limits")).fetchall()


def _add_groups(batch: Batch, groups: Sequence[str], cursor: psycopg.Cursor[Any]) -> Batch:
    """Return the batch with the result of jobs/claim_groups."""
    locked, jobs = _claimed(cursor)
    refused = frozenset(groups).difference(locked["locked"])
    return replace(batch, chains=batch.chains + _chains(jobs), refused=refused)


def _chains(jobs: Iterable[Claimed]) -> list[Chain]:
    """Return the jobs of each group as a chain, in their order."""
    chains: dict[str | None, Chain] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        chains.setdefault(job.group, []).append(job)
    return list(chains.values())


def open_jobs(conninfo: Mapping[str, Any], purpose: str) -> WatchedConnection:
    """Return a connection in autocommit to a database with jobs; see `open_part`."""
    connection, _ = open_part(conninfo, _JOBS, purpose)
    return connection
