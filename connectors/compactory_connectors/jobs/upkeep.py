"""The tasks of a keeper beside claims and ends of jobs, each with its interval."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

import psycopg

from compactory_sql import query

from .attempts import Attempts
from .claimer import Claimer
from .membership import Membership
from .registry import Jobs
from .statements import JobTable
from .status import Board, type_statuses

__all__ = ["Upkeep"]

_BEAT_EVERY = 2.0  # seconds; heartbeats, and deletions of finished jobs
_FOLLOW_EVERY = 0.2  # seconds; the assignment
_TICK_EVERY = 0.5  # seconds; periodic jobs
_SAMPLE_EVERY = 10.0  # seconds; figures for metrics, and limits
_WHOLE_EVERY = 300.0  # seconds between reads of the whole table, for jobs that compactory.enqueue did not write


@dataclass(slots=True)
class Upkeep:
    """Does the tasks that are due; those of a new executor are due at once. Owned by the keeper's thread.

    Raises psycopg.Error, and Unreachable if the lease has expired.
    """

    table: JobTable
    membership: Membership
    claimer: Claimer
    attempts: Attempts
    jobs: Jobs
    keep: timedelta
    board: Board
    due: dict[str, float]
    """By the monotonic clock, by task. It outlives a connection, so that a task that fails does not stop the others."""
    _ticks: dict[str, datetime] = field(default_factory=dict)  # periodic job → its last tick

    def is_late(self) -> bool:
        """Return True if the heartbeat is late, so that it can't wait for the claims of a round."""
        return time.monotonic() >= self.due.get("beat", 0.0) + _BEAT_EVERY

    def do_due_tasks(self) -> None:
        if self._is_due("beat", _BEAT_EVERY):
            self._beat()
        if self._is_due("follow", _FOLLOW_EVERY):
            self._follow()
        if self.jobs.periodic_jobs and self._is_due("tick", _TICK_EVERY):
            self._tick()
        if self._is_due("expire", _BEAT_EVERY):
            self._bounded("expire", self._expire)
        if self._is_due("sample", _SAMPLE_EVERY):
            self._bounded("sample", self._sample)
        if self._is_due("whole", _WHOLE_EVERY):
            self._bounded("whole", lambda: self.membership.find_orphans(self.table.connection))
            self.claimer.read_whole_table(self.table)
        self.attempts.end_overdue()

    def _is_due(self, task: str, seconds: float) -> bool:
        """Return True if ``seconds`` have passed since the task was due last."""
        clock = time.monotonic()
        if clock < self.due.get(task, 0.0):
            return False
        self.due[task] = clock + seconds
        return True

    def _bounded(self, task: str, work: Callable[[], object]) -> None:
        """Do a task within a second, because an open snapshot keeps dead rows; else try again much later."""
        try:
            with self.table.connection.transaction():
                self.table.connection.execute("SET LOCAL statement_timeout = '1s'")
                work()
        except psycopg.errors.QueryCanceled:
            self.due[task] = time.monotonic() + _WHOLE_EVERY

    def _beat(self) -> None:
        table = self.table
        self.attempts.check_tracing()
        has_changed, has_expired = self.membership.beat(table.connection)
        if has_changed or self._is_due("limits", _SAMPLE_EVERY):
            self.claimer.follow_limits(table)
        if has_changed:
            self.claimer.read_whole_table(table)
        if has_expired:
            self.due["beat"] = time.monotonic() + 0.1  # meanwhile the sessions of the expired executor end
        running = {attempt.job.id: attempt for attempt in self.attempts.running()}
        if running:
            for (job,) in table.connection.execute(query("jobs/cancelling"), {"ids": list(running)}).fetchall():
                running[job].end()

    def _follow(self) -> None:
        assigned = self.membership.assigned(self.table.executor)
        if self.claimer.follow_assignment(self.table, assigned):
            partitions = list(assigned.partitions) if assigned is not None else []
            self.board.note(
                executor=self.table.executor, partitions=partitions, worked_at=time.time(), is_ready=True, detail=None
            )

    def _tick(self) -> None:
        """Enqueue each periodic job that has a new tick, unless another executor has done that."""
        connection = self.table.connection
        row = connection.execute(query("jobs/clock")).fetchone()
        assert row is not None
        for periodic in self.jobs.periodic_jobs.values():
            tick = periodic.last_tick(row[0])
            if self._ticks.get(periodic.name) != tick:
                with connection.transaction():
                    parameters = {"name": periodic.name, "tick": tick}
                    if connection.execute(query("jobs/take_tick"), parameters).fetchone() is not None:
                        self.jobs.enqueue_many(connection, [periodic.job])
                self._ticks[periodic.name] = tick

    def _expire(self) -> None:
        if self.table.connection.execute(query("jobs/expire"), {"keep": self.keep}).rowcount >= 10_000:
            self.due["expire"] = 0.0

    def _sample(self) -> None:
        self.board.note(types=[asdict(item) for item in type_statuses(self.table.connection)])
