"""The statements of an executor beside claims: limits, sessions of handlers, periodic and finished jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory_connectors.postgres.schema_part import Part, open_part
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .claim_statements import ClaimStatements
from .end_statements import EndStatements
from .job import TENANT
from .limits import JobLimit, Limits, limits_json

__all__ = ["JobTable", "limits_in_force", "open_jobs"]

_JOBS = Part(name="jobs", needs="jobs need", installed="jobs are", may="run jobs")


class JobTable:
    """The statements of one executor. Owned by the keeper's thread. Raises psycopg.Error."""

    def __init__(
        self,
        connection: WatchedConnection,
        ends_connection: WatchedConnection,
        executor: int,
        types: Sequence[str],
    ) -> None:
        self.executor = executor
        self.claims = ClaimStatements(connection, executor, types)
        self.ends = EndStatements(ends_connection)
        self.connection = connection
        self._types = types

    def newest(self) -> int:
        """Return the newest number of a job or a position."""
        row = self.connection.execute(query("jobs/newest")).fetchone()
        return row[0] if row is not None else 0

    def declare_limits(self, limits: Iterable[JobLimit]) -> None:
        parameters = {"executor": self.executor, "limits": limits_json(limits)}
        self.connection.execute(query("jobs/declare_limits"), parameters)

    def limits(self) -> list[JobLimit]:
        """Return the limits in force, except those of types that this executor has no handler for."""
        limits = limits_in_force(self.connection)
        return [limit for limit in limits if limit.kind != "type" or limit.name in self._types]

    def mark_limited(self, limits: Limits) -> None:
        """Count running jobs of this executor that are under limits now."""
        parameters = {
            "executor": self.executor, "header": TENANT,
            "types": limits.types, "tenants": limits.tenants, "prefixes": limits.prefixes,
        }  # fmt: skip
        self.connection.execute(query("jobs/mark_limited"), parameters)

    def end_sessions(self, pids: Sequence[int]) -> set[int]:
        """End sessions of handlers; return the pids that still run."""
        parameters = {"executor": self.executor, "pids": list(pids)}
        return {row[0] for row in self.connection.execute(query("jobs/fence_handlers"), parameters)}

    def cancelling(self, jobs: Sequence[int]) -> set[int]:
        return {row[0] for row in self.connection.execute(query("jobs/cancelling"), {"ids": list(jobs)})}

    def tick(self, name: str, tick: datetime, enqueue: Callable[[psycopg.Connection[Any]], object]) -> None:
        """Enqueue a periodic job, unless another executor has done that for the tick."""
        with self.connection.transaction():
            parameters = {"name": name, "tick": tick}
            if self.connection.execute(query("jobs/take_tick"), parameters).fetchone() is not None:
                enqueue(self.connection)

    def expire(self, keep: timedelta) -> int:
        """Delete finished jobs that are older than ``keep``, up to a limit; return their number."""
        return self.connection.execute(query("jobs/expire"), {"keep": keep}).rowcount

    def unregister(self) -> None:
        self.connection.execute(query("jobs/unregister"), {"executor": self.executor})
        self.connection.execute(query("jobs/notify"))

    def clock(self) -> datetime:
        row = self.connection.execute(query("jobs/clock")).fetchone()
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
