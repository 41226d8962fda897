"""One executor among the others: its heartbeat, the executors that are dead, and the partitions that are its own."""

from __future__ import annotations

import structlog

from .partition_assignment import Assignment
from .statements import Assigned, JobTable
from .status import Board

__all__ = ["Membership"]

log = structlog.get_logger("compactory.jobs")


class Membership:
    """Owned by the keeper's thread. Raises psycopg.Error."""

    def __init__(self, assignment: Assignment, board: Board) -> None:
        self.registered = False
        """Whether no other executor has taken this one for dead, as far as is known."""
        self._assignment = assignment
        self._board = board
        self._executors: tuple[int, ...] = ()
        self._pool: tuple[int, ...] = ()
        self._dead: set[int] = set()  # executors with jobs to be taken back

    @property
    def pool(self) -> str:
        """Names the executors that divide the partitions among them."""
        return self._assignment.pool

    def beat(self, table: JobTable) -> tuple[bool, bool]:
        """Renew the heartbeat and take back the jobs of dead executors.

        Whether others came, went or left jobs, and whether one was taken for dead just now.
        """
        found = table.beat(self.pool)
        self.registered = found.registered
        if not found.registered:
            return False, False
        buried = {executor for executor in found.lapsed if table.bury(executor)}
        for executor in buried:
            log.warning("an executor is taken for dead", executor=executor)
        self._dead |= buried | set(self._executors).difference(found.all)
        rescued = sum(self._rescue(table, executor) for executor in sorted(self._dead))
        changed = found.all != self._executors or rescued > 0
        self._executors, self._pool = found.all, found.pool
        return changed, bool(buried)

    def look_for_orphans(self, table: JobTable) -> None:
        """Find executors that jobs name and that are not registered."""
        self._dead.update(table.orphans())

    def assigned(self, executor: int) -> Assigned | None:
        """The partitions of this executor. Raises ConfigError."""
        return self._assignment.assigned(self._pool, executor)

    def stop(self) -> None:
        """Let go of the partitions."""
        self._assignment.stop()

    def _rescue(self, table: JobTable, executor: int) -> int:
        """Take back the jobs of an executor that has gone, once its sessions have ended; how many there were."""
        rescued = table.rescue(executor)
        if rescued is None:
            return 0
        self._dead.discard(executor)
        if rescued:
            self._board.count("rescued", len(rescued))
            log.warning("jobs of a dead executor were taken back", executor=executor, jobs=len(rescued))
        return len(rescued)
