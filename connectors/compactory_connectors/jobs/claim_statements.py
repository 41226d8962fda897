"""The statements that find and claim due jobs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from compactory_connectors.postgres.position import Position
from compactory_connectors.postgres.snapshot import Snapshot
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import JOB_GROUP_LOCK_CLASS, JOB_LIMIT_LOCK_CLASS, query

from .job import TENANT
from .limited_queues import LimitedBatch, LimitedQueue, LimitedQueues, Room
from .limits import NO_LIMIT, JobLimit, LimitKey, Limits, limits_json
from .rows import Assigned, Chain, Claimed

__all__ = ["Batch", "ClaimStatements", "Request"]

_GROUPS = 100  # groups of a limited queue that are claimed from at once
_LOCKED = 0.005  # seconds until a claim after another executor had locked a limit
_PROMOTED = 1000  # due jobs that get a position at once
_SEARCHED = 10_000  # jobs under limits that a search reads at once
_LATE = timedelta(seconds=60)  # a job of a longer transaction may be found late when it is due


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
    due_groups: Sequence[str] = ()
    refused: frozenset[str] = frozenset()
    full: bool = False
    next_due: float | None = None


class ClaimStatements:
    """Owned by the keeper's thread. Raises psycopg.Error."""

    def __init__(self, connection: WatchedConnection, executor: int, types: Sequence[str]) -> None:
        self._connection = connection
        self._executor = executor
        self._tokens = itertools.count(executor << 32)
        self._all_types = list(types)
        self._fixed: dict[str, Any] = {"executor": executor, "types": self._all_types, "class": JOB_GROUP_LOCK_CLASS}
        self._whole_at: datetime | None = None  # when all jobs that are not due were last read
        self.obey(Limits(), (), ())

    def obey(self, limits: Limits, paused_types: Collection[str], paused_groups: Collection[str]) -> None:
        """Claim no paused jobs, and none without room under the limits. They still get positions when they are due."""
        self._limits = limits
        self._types = [name for name in self._all_types if name not in paused_types]
        self._free_types = [name for name in self._types if name not in limits.types]
        self._paused_groups = list(paused_groups)

    def read_whole(self) -> None:
        """Make the next claim read all jobs that are not due."""
        self._whole_at = None

    def claim(self, request: Request, assigned: Assigned, position: Position) -> Batch:
        """Find due jobs and claim jobs without limits, in one transaction and one round trip."""
        parameters = self._parameters(NO_LIMIT, assigned) | _of_position(position) | {
            "limit": request.limit,
            "groups": list(request.groups),
            "freed": list(request.freed),
            "depth": request.depth,
        }  # fmt: skip
        claimed = self._connection.cursor(row_factory=tuple_row)
        grouped = self._connection.cursor(row_factory=tuple_row)
        with self._connection.pipeline():  # one transaction, which ends with it
            promoted = self._connection.execute(
                query("jobs/promote"), parameters | {"since": self._since(), "most": _PROMOTED}
            )
            claimed.execute(query("jobs/claim"), parameters)
            if request.groups:
                self._claim_groups(grouped, parameters)
        state, jobs = _claimed(claimed)
        more_due = promoted.rowcount == _PROMOTED
        self._note_promoted(datetime.fromisoformat(state["clock"]), more_due=more_due)
        batch = Batch(
            position=position if state["skipped"] else _next_position(position, state),
            chains=[[job] for job in jobs],
            due_groups=state["groups"],
            full=state["last"] is not None or more_due,
            next_due=state["later"],
        )
        if not request.groups:
            return batch
        chains, refused = _of_groups(grouped, request.groups)
        return replace(batch, chains=batch.chains + chains, refused=refused)

    def search_limited(self, queues: LimitedQueues, assigned: Assigned) -> None:
        limits = self._limits
        parameters = self._parameters(NO_LIMIT, assigned) | _of_position(queues.position) | {
            "claimed_types": self._types, "limited_types": limits.types, "limit": _SEARCHED,
        }  # fmt: skip
        cursor = self._connection.cursor(row_factory=tuple_row)
        (*_, state), *rows = cursor.execute(query("jobs/search_limited"), parameters).fetchall()
        lowest = {LimitKey(*row[:3]): row[3] for row in rows}
        queues.add(_next_position(queues.position, state), lowest, may_have_more=state["last"] is not None)

    def rooms(self, limits: Iterable[JobLimit]) -> dict[str, Room]:
        """Return the room under each limit by its slot. Other executors may take it meanwhile."""
        parameters = {"limits": limits_json(limits), "header": TENANT}
        return _rooms(self._connection.execute(query("jobs/limit_rooms"), parameters))

    def claim_limited(self, queue: LimitedQueue, count: int, assigned: Assigned) -> LimitedBatch | float | None:
        """Claim at most ``count`` jobs of a queue, in one transaction that has locked its limits.

        Return the seconds until the queue may be claimed from if no job may start; None: as many jobs run as may.
        """
        parameters = {"limits": limits_json(queue.limits), "class": JOB_LIMIT_LOCK_CLASS, "header": TENANT}
        with self._connection.pipeline():  # one transaction, which ends with it
            locked = self._connection.execute(query("jobs/lock_limits"), parameters)
            rooms = self._connection.execute(query("jobs/limit_rooms"), parameters)
            if locked.fetchone() != (True,):
                return _LOCKED
            room = Room.smallest(_rooms(rooms).values())
            if room.jobs <= 0:
                return room.next_due
            batch = self._claim_of_queue(queue, min(room.jobs, count), assigned)
            starts = sum(map(len, batch.chains))
            for limit in queue.limits if starts else ():
                if limit.rate_count is not None:
                    self._connection.execute(query("jobs/count_starts"), limit.parameters() | {"starts": starts})
        return batch

    def notify_slots(self, slots: Iterable[str]) -> None:
        """Wake other executors that wait for the end of a job under one of these limits."""
        payloads = [f"slot {self._executor} {slot}" for slot in slots]
        self._connection.execute(query("jobs/notify_slots"), {"payloads": payloads})

    def _claim_of_queue(self, queue: LimitedQueue, count: int, assigned: Assigned) -> LimitedBatch:
        """Claim the first jobs of groups, if there are any to claim from, else jobs after the queue's ``start``."""
        groups = queue.next_groups(min(count, _GROUPS))
        parameters = self._parameters(queue.key, assigned) | {
            "limited": True, "limit": count, "groups": groups, "freed": [], "depth": 1,
            "start": queue.start, "running": [], "lows": [],
        }  # fmt: skip
        cursor = self._connection.cursor(row_factory=tuple_row)
        if groups:
            self._claim_groups(cursor, parameters)
            chains, refused = _of_groups(cursor, groups)
            return LimitedBatch(
                start=queue.start, may_have_more=queue.may_have_more, chains=chains, requested=groups, refused=refused
            )
        state, jobs = _claimed(cursor.execute(query("jobs/claim"), parameters))
        return LimitedBatch(
            start=queue.start if state["skipped"] or state["last"] is None else state["last"],
            may_have_more=state["skipped"] or state["last"] is not None,
            chains=[[job] for job in jobs],
            due_groups=state["groups"],
        )

    def _claim_groups(self, cursor: psycopg.Cursor[Any], parameters: dict[str, Any]) -> None:
        """Claim the next jobs of groups. A pipeline must be open."""
        self._connection.execute(query("jobs/lock_groups"), parameters)
        self._connection.execute(query("jobs/supersede"))
        cursor.execute(query("jobs/claim_groups"), parameters)

    def _parameters(self, key: LimitKey, assigned: Assigned) -> dict[str, Any]:
        return self._fixed | self._limits.parameters(key) | {
            "claimed_types": self._free_types if key.type is None else [key.type],
            "paused_groups": self._paused_groups,
            "partitions": f"{{{','.join(map(str, assigned.partitions))}}}",  # psycopg takes ten times as long
            "of": assigned.of,
            "token": next(self._tokens),
            "limited": None,
        }  # fmt: skip

    def _since(self) -> str | datetime:
        return "-infinity" if self._whole_at is None else self._whole_at - _LATE

    def _note_promoted(self, clock: datetime, *, more_due: bool) -> None:
        """Record which due jobs have got positions. ``more_due``: there are more of them."""
        if more_due:
            self._whole_at = None
        elif self._whole_at is None or abs(clock - self._whole_at) > _LATE:
            self._whole_at = clock if self._whole_at is None else None


def _of_position(position: Position) -> dict[str, Any]:
    return {
        "start": position.start,
        "running": [str(xid) for xid in position.running],
        "lows": list(position.running.values()),
    }


def _next_position(position: Position, state: dict[str, Any]) -> Position:
    running = Snapshot.parse(state["snapshot"]).running(int(state["own"]))
    return position.after(running, state["newest"], state["last"])


def _rooms(cursor: psycopg.Cursor[Any]) -> dict[str, Room]:
    return {slot: Room(jobs, next_due) for slot, jobs, next_due in cursor.fetchall()}


def _claimed(cursor: psycopg.Cursor[Any]) -> tuple[dict[str, Any], list[Claimed]]:
    """Return the state in the first row, and the jobs in the other rows."""
    rows = cursor.fetchall()
    return rows[0][10], [Claimed(*row) for row in rows[1:]]


def _of_groups(cursor: psycopg.Cursor[Any], groups: Sequence[str]) -> tuple[list[Chain], frozenset[str]]:
    """Return the claimed jobs of each group as a chain, in their order, and the groups that others had locked."""
    locked, jobs = _claimed(cursor)
    chains: dict[str | None, Chain] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        chains.setdefault(job.group, []).append(job)
    return list(chains.values()), frozenset(groups).difference(locked["locked"])
