"""The membership of an executor: its registration and lease, expired executors, and its partitions."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog
from psycopg import sql

from compactory.errors import Unreachable
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import query

from .attempts import Attempts
from .claims import Claims
from .limits import limits_json
from .partition_assignment import Assignment
from .registry import Jobs
from .rows import Assigned
from .statements import JobTable
from .status import Board

__all__ = ["SPREAD", "TTL", "Membership"]

log = structlog.get_logger("compactory.jobs")

TTL: Final = 10.0
"""Seconds without a heartbeat after which the lease of an executor expires."""
SPREAD: Final = 5.0
"""Seconds over which rescued jobs become due, at their first rescue."""


@dataclass(slots=True)
class Membership:
    """Owned by the keeper's thread. Raises psycopg.Error."""

    assignment: Assignment
    jobs: Jobs
    attempts: Attempts
    claims: Claims
    board: Board
    _name: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    _executor: int | None = None
    _executors: tuple[int, ...] = ()
    _pool: tuple[int, ...] = ()
    _expired: set[int] = field(default_factory=set)  # executors whose jobs are to be rescued

    @property
    def is_alone(self) -> bool:
        return len(self._executors) <= 1

    def register(self, connection: WatchedConnection, ends_connection: WatchedConnection) -> JobTable:
        """Register a new executor, or go on as the one that this was if its lease has not expired. Return its table.

        Raises Unreachable while an earlier session of the executor has not ended.
        """
        types = sorted(self.jobs.handlers)
        if self._executor is None or not self._resume(connection, self._executor):
            begun_at = time.monotonic()
            parameters = {"name": self._name, "pool": self.assignment.pool, "types": types}
            (executor,) = connection.execute(query("jobs/register"), parameters).fetchone() or (0,)
            self._executor, self.attempts.lease = executor, (executor, begun_at + TTL)
            _name_session(connection, executor)
        executor = self.attempts.lease[0]
        _name_session(ends_connection, executor)
        table = JobTable(connection, ends_connection, executor, types)
        if self.jobs.limits:
            limits = limits_json(self.jobs.limits.values())
            connection.execute(query("jobs/declare_limits"), {"executor": executor, "limits": limits})
        return table

    def beat(self, connection: WatchedConnection) -> tuple[bool, bool]:
        """Renew the lease and rescue the jobs of expired executors.

        Return True if executors or their jobs have changed, and True if an executor has expired now. Raises Unreachable
        if the lease has expired.
        """
        rows = self._renew(connection)
        if not rows:
            raise Unreachable("Postgres", "the lease of this executor has expired; it registers again")
        executors = tuple(row[0] for row in rows)
        expired = {row[0] for row in rows if row[3] and self._unregister_expired(connection, row[0])}
        self._expired |= expired | set(self._executors).difference(executors)
        rescued = sum(self._rescue(connection, executor) for executor in sorted(self._expired))
        has_changed = executors != self._executors or rescued > 0
        self._executors = executors
        self._pool = tuple(row[0] for row in rows if row[1] == self.assignment.pool and not row[3])
        return has_changed, bool(expired)

    def find_orphans(self, connection: WatchedConnection) -> None:
        """Rescue the jobs of executors that are not registered, with the next heartbeat."""
        self._expired.update(row[0] for row in connection.execute(query("jobs/orphans")))

    def _resume(self, connection: WatchedConnection, executor: int) -> bool:
        """Go on as this executor, and return jobs whose claim was lost. Return False if the lease has expired."""
        session = _name_session(connection, executor)
        if not self._renew(connection):
            return False
        if connection.execute(query("jobs/fence_keeper"), {"session": session}).fetchone() != (0,):
            raise Unreachable("Postgres", "an earlier session of this executor has not ended yet")
        parameters = {"executor": executor, "held": self.claims.ids}
        connection.execute(query("jobs/return_unreceived"), parameters)
        return True

    def _renew(self, connection: WatchedConnection) -> list[tuple[int, str, bool, bool]]:
        """Renew the lease; return the rows of jobs/beat.

        If the lease has expired, return no row, and forget the executor and its claims. The next executor of this
        process claims nothing until running attempts have ended.
        """
        begun_at = time.monotonic()
        parameters = {"executor": self._executor, "name": self._name, "ttl": timedelta(seconds=TTL)}
        rows = connection.execute(query("jobs/beat"), parameters).fetchall()
        if self._executor is not None and any(row[2] for row in rows):
            self.attempts.lease = (self._executor, begun_at + TTL)
            return rows
        log.warning("the lease of this executor has expired; it registers again", executor=self._executor)
        self._executor, self.attempts.lease = None, (0, 0.0)
        self.claims.forget()
        self.attempts.end()
        return []

    def _unregister_expired(self, connection: WatchedConnection, executor: int) -> bool:
        """Unregister an executor and start to end its sessions. Return False if it has renewed its heartbeat."""
        parameters = {"executor": executor, "ttl": timedelta(seconds=TTL)}
        with connection.transaction():
            has_expired = connection.execute(query("jobs/unregister_expired"), parameters).rowcount > 0
            if has_expired:
                log.warning("the lease of an executor has expired", executor=executor)
                connection.execute(query("jobs/fence"), parameters)
        return has_expired

    def _rescue(self, connection: WatchedConnection, executor: int) -> int:
        """Rescue the jobs of an expired executor, once its sessions have ended; return their number."""
        if connection.execute(query("jobs/fence"), {"executor": executor}).fetchone() != (0,):
            return 0
        parameters = {"executor": executor, "spread": timedelta(seconds=SPREAD)}
        count = connection.execute(query("jobs/rescue"), parameters).rowcount
        self._expired.discard(executor)
        if count:
            self.board.note(rescued=self.board.rescued + count)
            log.warning("jobs of an expired executor were rescued", executor=executor, jobs=count)
        return count

    def assigned(self, executor: int) -> Assigned | None:
        return self.assignment.assigned(self._pool, executor)

    def stop(self) -> None:
        self.assignment.stop()


def _name_session(connection: WatchedConnection, executor: int) -> str:
    """Name the session of a keeper, so that others can end it; return the name."""
    name = f"compactory-jobs {executor} keeper"
    connection.execute(sql.SQL("SET application_name = {}").format(sql.Literal(name)))
    return name
