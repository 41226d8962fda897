"""The membership of an executor: its heartbeat, expired executors, and its partitions."""

from __future__ import annotations

import structlog

from .partition_assignment import Assignment
from .rows import Assigned
from .statements import JobTable
from .status import Board

__all__ = ["Membership"]

log = structlog.get_logger("compactory.jobs")


class Membership:
    """Owned by the keeper's thread. Raises psycopg.Error."""

    def __init__(self, assignment: Assignment, board: Board) -> None:
        self.registered = False
        """True if the lease had not expired at the last heartbeat."""
        self._assignment = assignment
        self._board = board
        self._executors: tuple[int, ...] = ()
        self._pool: tuple[int, ...] = ()
        self._expired: set[int] = set()  # executors whose jobs are to be rescued

    @property
    def pool(self) -> str:
        """The name of the pool: the executors that divide the same partitions."""
        return self._assignment.pool

    @property
    def is_alone(self) -> bool:
        """True if no other executor is registered."""
        return len(self._executors) <= 1

    def beat(self, table: JobTable) -> tuple[bool, bool]:
        """Renew the heartbeat and rescue the jobs of expired executors.

        Return True if executors or their jobs have changed, and True if an executor has expired now.
        """
        executors = table.beat(self.pool)
        self.registered = executors.registered
        if not executors.registered:
            return False, False
        expired = {executor for executor in executors.lapsed if table.expire_executor(executor)}
        for executor in expired:
            log.warning("the lease of an executor has expired", executor=executor)
        self._expired |= expired | set(self._executors).difference(executors.ids)
        rescued = sum(self._rescue(table, executor) for executor in sorted(self._expired))
        has_changed = executors.ids != self._executors or rescued > 0
        self._executors, self._pool = executors.ids, executors.pool
        return has_changed, bool(expired)

    def find_orphans(self, table: JobTable) -> None:
        """Rescue the jobs of executors that are not registered, with the next heartbeat."""
        self._expired.update(table.orphans())

    def assigned(self, executor: int) -> Assigned | None:
        """Return the partitions of this executor. Raises ConfigError."""
        return self._assignment.assigned(self._pool, executor)

    def stop(self) -> None:
        """Stop following the assignment. Idempotent."""
        self._assignment.stop()

    def _rescue(self, table: JobTable, executor: int) -> int:
        """Rescue the jobs of an expired executor, once its sessions have ended; return their number."""
        rescued = table.rescue(executor)
        if rescued is None:
            return 0
        self._expired.discard(executor)
        if rescued:
            self._board.note(rescued=self._board.rescued + len(rescued))
            log.warning("jobs of an expired executor were rescued", executor=executor, jobs=len(rescued))
        return len(rescued)
