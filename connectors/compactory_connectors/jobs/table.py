"""The tables of jobs as the keeper of one executor uses them: claims, ends of attempts, heartbeats, rescues."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import psycopg
from psycopg.rows import tuple_row

from compactory_connectors.database.installed import Part, open_part
from compactory_connectors.database.position import Position
from compactory_connectors.database.snapshot import Snapshot
from compactory_connectors.database.watched_connection import WatchedConnection
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
    "open_jobs",
    "outcomes_json",
]

TTL: Final = 10.0
"""Seconds without a heartbeat after which an executor is taken for dead."""

SPREAD: Final = 5.0
"""Seconds over which the jobs of a dead executor come back, at their first rescue."""

_JOBS = Part(name="jobs", needs="jobs need", installed="jobs are", may="run jobs")

_LATE = timedelta(seconds=60)  # how long transactions may take whose jobs are found at once when they come due


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
    cancelling: bool
    payload: str
    headers: Mapping[str, str] | None
    run_at: datetime
    created_at: datetime


Chain: TypeAlias = list[Claimed]
"""Jobs of one group in their order, or one job without a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class Batch:
    """What a round came to: jobs without a group, groups to look at, and which attempts were still ours to end."""

    jobs: list[Claimed]
    groups: list[str]
    ended: frozenset[int]
    position: Position
    full: bool
    clock: datetime
    later: float | None


@dataclass(frozen=True, slots=True)
class Executors:
    """All that are registered: those of our pool in order of ids, all ids, and those whose heartbeat lapsed."""

    pool: tuple[int, ...]
    all: tuple[int, ...]
    lapsed: tuple[int, ...]
    registered: bool


class JobTable:
    """Statements of one executor. Owned by one thread. Raises psycopg.Error."""

    def __init__(self, connection: WatchedConnection, executor: int, types: Sequence[str]) -> None:
        self.executor = executor
        self._connection = connection
        self._tokens = itertools.count(executor << 32)
        self._given: dict[str, Any] = {"executor": executor, "types": list(types), "class": JOB_GROUP_LOCK_CLASS}
        self._whole_at: datetime | None = None  # when all jobs that wait for their time were last looked through

    def newest(self) -> int:
        """The newest number that was given to a job or a position."""
        row = self._connection.execute(query("jobs/newest")).fetchone()
        return row[0] if row is not None else 0

    def round(self, outcomes: Sequence[Outcome], assigned: Assigned, position: Position, limit: int) -> Batch:
        """End attempts, see what has come due and claim up to ``limit`` jobs, in one transaction and one round trip."""
        token = next(self._tokens)
        given = self._given | {"partitions": list(assigned.partitions), "of": assigned.of, "token": token}
        reading = {
            "start": position.start,
            "running": [str(xid) for xid in position.running],
            "lows": list(position.running.values()),
            "limit": limit,
        }
        with self._connection.pipeline():  # one transaction, which ends with it
            ended = self._finish(outcomes) if outcomes else None
            if any(outcome.state == "scheduled" and not outcome.delay for outcome in outcomes):
                self._connection.execute(query("jobs/notify"))
            if limit:
                self._connection.execute(query("jobs/promote"), given | {"since": self._since()})
            cursor = self._connection.cursor(row_factory=tuple_row)
            cursor.execute(query("jobs/claim"), given | reading)
        rows = cursor.fetchall()
        facts: Any = rows.pop(0)[9]
        clock = datetime.fromisoformat(facts["clock"])
        self._looked(clock)
        after = position
        if limit and not facts["skipped"]:
            running = Snapshot.parse(facts["snapshot"]).running(int(facts["own"]))
            after = position.after(running, facts["newest"], facts["last"])
        return Batch(
            [Claimed(*row) for row in rows],
            facts["groups"],
            frozenset(row[0] for row in ended.fetchall()) if ended is not None else frozenset(),
            after,
            facts["last"] is not None,
            clock,
            facts["later"],
        )

    def claim_groups(
        self, groups: Sequence[str], freed: Iterable[str], assigned: Assigned, depth: int
    ) -> tuple[list[Chain], set[str]]:
        """Claim the first jobs of groups, up to ``depth`` of each.

        The chains, and those groups that somebody else just looks at: they are to be looked at again.
        Of ``freed`` groups, in which a job of ours has ended, first jobs that are another executor's are shown to it.
        """
        given = self._given | {"partitions": list(assigned.partitions), "of": assigned.of, "token": next(self._tokens)}
        freed = frozenset(freed)
        with self._connection.transaction():
            names = {"class": JOB_GROUP_LOCK_CLASS, "groups": list(groups)}
            locked = [row[0] for row in self._connection.execute(query("jobs/lock_groups"), names)]
            with self._connection.pipeline():
                self._connection.execute(query("jobs/supersede"), {"groups": locked})
                heads = self._connection.execute(query("jobs/heads"), given | {"groups": locked, "depth": depth})
            mine, others = _runnable(heads.fetchall())
            taken = self._connection.cursor(row_factory=tuple_row)
            taken.execute(query("jobs/take"), given | {"ids": mine})
            shown = [number for group, number in others.items() if group in freed]
            if shown:
                self._connection.execute(query("jobs/show_again"), {"ids": shown})
                self._connection.execute(query("jobs/notify"))
        chains: dict[str, Chain] = {}
        for row in sorted(taken.fetchall(), key=lambda row: row[0]):
            chains.setdefault(row[2], []).append(Claimed(*row))
        return list(chains.values()), set(groups).difference(locked)

    def resume(self, session: str, held: Iterable[int]) -> bool:
        """Go on after the connection was lost: hand back what was claimed and not heard of; False: not yet."""
        left = self._connection.execute(query("jobs/fence_keeper"), {"session": session}).fetchone()
        if left != (0,):
            return False
        self._connection.execute(query("jobs/forgotten"), {"executor": self.executor, "held": list(held)})
        return True

    @classmethod
    def register(cls, connection: WatchedConnection, name: str, pool: str, types: Sequence[str]) -> JobTable:
        """A new executor."""
        row = connection.execute(query("jobs/register"), {"name": name, "pool": pool, "types": list(types)}).fetchone()
        assert row is not None
        return cls(connection, row[0], types)

    def beat(self, pool: str) -> Executors:
        """Renew the heartbeat and look at all executors."""
        given = {"executor": self.executor, "ttl": timedelta(seconds=TTL)}
        rows = self._connection.execute(query("jobs/beat"), given).fetchall()
        return Executors(
            tuple(row[0] for row in rows if row[1] == pool and not row[3]),
            tuple(row[0] for row in rows),
            tuple(row[0] for row in rows if row[3]),
            any(row[2] for row in rows),
        )

    def bury(self, executor: int) -> None:
        """Take an executor whose heartbeat lapsed for dead, and begin to end its sessions."""
        with self._connection.transaction():
            self._connection.execute(query("jobs/unregister"), {"executor": executor})
            self._connection.execute(query("jobs/fence"), {"executor": executor})

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
        """Enqueue a periodic job, where nobody has for this tick."""
        with self._connection.transaction():
            given = {"name": name, "tick": tick}
            if self._connection.execute(query("jobs/ticked"), given).fetchone() is not None:
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

    def _finish(self, outcomes: Sequence[Outcome]) -> psycopg.Cursor[Any]:
        return self._connection.cursor(row_factory=tuple_row).execute(query("jobs/finish"), outcomes_json(outcomes))

    def _since(self) -> str | datetime:
        return "-infinity" if self._whole_at is None else self._whole_at - _LATE

    def _looked(self, clock: datetime) -> None:
        if self._whole_at is None or clock - self._whole_at > _LATE:
            self._whole_at = clock if self._whole_at is None else None


def outcomes_json(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The parameters of jobs/finish."""
    return {"outcomes": orjson.dumps(outcomes).decode()}


def _runnable(heads: Iterable[tuple[str, int, bool, bool]]) -> tuple[list[int], dict[str, int]]:
    """Which of the first jobs can be claimed, and the first job of groups where that is another executor's."""
    mine: list[int] = []
    others: dict[str, int] = {}
    for group, rows in itertools.groupby(heads, key=lambda row: row[0]):
        first = True
        for _, number, due, own in rows:
            if not due or not own:
                if due and first:
                    others[group] = number
                break
            mine.append(number)
            first = False
    return mine, others


def open_jobs(conninfo: Mapping[str, Any], purpose: str) -> WatchedConnection:
    """A connection in autocommit to a database with jobs; see `open_part`."""
    connection, _ = open_part(conninfo, _JOBS, purpose)
    return connection
