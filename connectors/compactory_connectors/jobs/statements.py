"""The statements of an executor about itself, others and limits: registration, heartbeats, rescues, periodic jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .claim_statements import ClaimStatements
from .end_statements import EndStatements
from .job import TENANT
from .limits import JobLimit, Limits, limits_json

__all__ = ["TTL", "Executors", "JobTable", "limits_in_force", "open_jobs"]

TTL: Final = 10.0
"""Seconds without a heartbeat after which the lease of an executor expires."""

SPREAD: Final = 5.0
"""Seconds over which rescued jobs become due, at their first rescue."""

_JOBS = Part(name="jobs", needs="jobs need", installed="jobs are", may="run jobs")


@dataclass(frozen=True, slots=True)
class Executors:
    """Ids of registered executors: all, of the pool, with a lapsed heartbeat. ``registered``: this one is."""

    pool: tuple[int, ...]
    ids: tuple[int, ...]
    lapsed: tuple[int, ...]
    registered: bool


class JobTable:
    """The statements of one executor. Owned by the keeper's thread. Raises psycopg.Error."""

    def __init__(
        self,
        connection: WatchedConnection,
        ends_connection: WatchedConnection,
        executor: int,
        name: str,
        types: Sequence[str],
    ) -> None:
        self.executor = executor
        self.until = 0.0
        """The end of the lease, by the monotonic clock."""
        self.claims = ClaimStatements(connection, executor, types)
        self.ends = EndStatements(ends_connection)
        self._connection = connection
        self._name = name
        self._types = types

    def newest(self) -> int:
        """Return the newest number of a job or a position."""
        row = self._connection.execute(query("jobs/newest")).fetchone()
        return row[0] if row is not None else 0

    def declare_limits(self, limits: Iterable[JobLimit]) -> None:
        """Keep the limits of this executor's handlers for all executors."""
        parameters = {"executor": self.executor, "limits": limits_json(limits)}
        self._connection.execute(query("jobs/declare_limits"), parameters)

    def limits(self) -> list[JobLimit]:
        """Return the limits in force, except those of types that this executor has no handler for."""
        limits = limits_in_force(self._connection)
        return [limit for limit in limits if limit.kind != "type" or limit.name in self._types]

    def mark_limited(self, limits: Limits) -> None:
        """Count running jobs of this executor that are under limits now."""
        parameters = {
            "executor": self.executor, "header": TENANT,
            "types": limits.types, "tenants": limits.tenants, "prefixes": limits.prefixes,
        }  # fmt: skip
        self._connection.execute(query("jobs/mark_limited"), parameters)

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

    def clock(self) -> datetime:
        """Return the time of Postgres."""
        row = self._connection.execute(query("jobs/clock")).fetchone()
        assert row is not None
        clock: datetime = row[0]
        return clock


def limits_in_force(connection: psycopg.Connection[Any]) -> list[JobLimit]:
    """Return the limits of all types: those of operators, and of handlers for other types. Raises psycopg.Error."""
    return connection.cursor(row_factory=class_row(JobLimit)).execute(query("jobs/limits")).fetchall()


def open_jobs(conninfo: Mapping[str, Any], purpose: str) -> WatchedConnection:
    """Return a connection in autocommit to a database with jobs; see `open_part`."""
    connection, _ = open_part(conninfo, _JOBS, purpose)
    return connection
