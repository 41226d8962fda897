"""The keeper of an executor: a thread that claims jobs, gives them to threads, and commits the outcomes.

One round: wait for ends of attempts → renew what is due → commit outcomes and claim jobs → sleep until there is work.
The keeper's states: connecting → rounds → stopping (claims nothing, waits for running attempts) → finished.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial

import psycopg
import structlog
from psycopg import sql

from compactory.errors import CompactoryError, Unreachable
from compactory_connectors.backoff import Backoff
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.postgres.pausing import Pauses
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.wakeup import Wakeup
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import JOBS_CHANNEL, JOBS_LOCK_CLASS

from .attempt import Ended
from .attempts import Attempts
from .claimer import Claimer
from .claims import Claims
from .end_statements import Commit
from .membership import Membership
from .partition_assignment import Assignment
from .registry import Jobs
from .statements import JobTable, open_jobs
from .status import Board, type_statuses

__all__ = ["Keeper"]

log = structlog.get_logger("compactory.jobs")

_BEAT_EVERY = 2.0  # seconds; heartbeats
_FOLLOW_EVERY = 0.2  # seconds; the assignment
_SAMPLE_EVERY = 10.0  # seconds; for metrics
_WHOLE_EVERY = 300.0  # seconds between reads of the whole table, for jobs that compactory.enqueue did not write
_LONGEST_ROUND = 0.5  # seconds
_SHORTEST_ROUND = 0.002  # seconds
_GATHER = 0.01  # seconds that a round waits for more ends
_BUSY = 100  # ends in a round from which on writers need not notify


class Keeper:
    """The keeper of one executor. :meth:`wake` and :meth:`add_ended` are thread-safe."""

    def __init__(
        self, postgres: Connection, jobs: Jobs, concurrency: int, assignment: Assignment, keep: timedelta, board: Board
    ) -> None:
        self._postgres = postgres
        self._jobs = jobs
        self._keep = keep
        self._board = board
        self._membership = Membership(assignment, board)
        self._attempts = Attempts(concurrency, jobs.handlers, postgres.conninfo, self.add_ended)
        self._claims = Claims(concurrency, self._attempts, board)
        self._claimer = Claimer(self._claims, board)
        self.stopping = threading.Event()
        self.end_attempts_now = threading.Event()
        self._finished = threading.Event()
        self._wakeup: Wakeup | None = None
        self._wake_threshold = 0.0  # an end wakes the keeper if fewer chains wait for a thread
        self._ended: deque[Ended] = deque()
        self._with_sessions: list[Ended] = []  # ended attempts whose Postgres sessions still run
        self._executor: int | None = None
        self._pause = _SHORTEST_ROUND
        self._next: dict[str, float] = {}  # task → when it is due, by the monotonic clock
        self._ticks: dict[str, datetime] = {}  # periodic job → its last tick
        self._thread = threading.Thread(target=self._run, name="compactory-jobs", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._attempts.start()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while all threads run."""
        return self._thread.is_alive() and self._attempts.alive

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the end of the keeper; return True if it has ended."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Start the next round now. Thread-safe."""
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.poke()

    def add_ended(self, ended: Ended) -> None:
        """Record that the first job of a chain has ended. Thread-safe."""
        self._ended.append(ended)
        if self._attempts.waiting < self._wake_threshold:
            self.wake()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._finished.is_set():
            try:
                with (
                    postgres_errors(self._postgres),
                    closing(open_jobs(self._postgres.conninfo, "start")) as connection,
                    closing(open_jobs(self._postgres.conninfo, "start")) as ends_connection,
                ):
                    wakeup = Wakeup(connection, JOBS_CHANNEL, (JOBS_LOCK_CLASS, 0))
                    with closing(wakeup):
                        self._wakeup = wakeup
                        pauses = Pauses(connection, "jobs", "job-groups")
                        table = self._register(connection, ends_connection)
                        _name(ends_connection, f"{table.executor} keeper")
                        if self._jobs.limits:
                            table.declare_limits(self._jobs.limits.values())
                        self._claimer.forget_limits()
                        self._claimer.follow_limits(table)
                        self._attempts.lease = (table.executor, table.until)
                        while not self._finished.is_set():
                            if pauses.have_changed():
                                self._claimer.follow_pauses(table, pauses)
                            self._round(table, connection, wakeup)
                            backoff.reset()
            except CompactoryError as error:
                self._board.note(detail=str(error))
                log.warning("the keeper waits for Postgres", error=" ".join(str(error).split()))
                if self.stopping.is_set() and not self._attempts.running():
                    break  # another executor rescues the claimed jobs
                (self._finished if self.stopping.is_set() else self.stopping).wait(backoff.pause())
            finally:
                self._wakeup = None
        self._membership.stop()
        self._attempts.stop(time.monotonic() + 1.0)

    def _register(self, connection: WatchedConnection, ends_connection: WatchedConnection) -> JobTable:
        """Return the table of the former executor if it is still registered, else of a new one."""
        name, types = f"{socket.gethostname()}:{os.getpid()}", sorted(self._jobs.handlers)
        if self._executor is not None:
            _name(connection, f"{self._executor} keeper")
            table = JobTable(connection, ends_connection, self._executor, name, types)
            if table.beat(self._membership.pool).registered:
                if not table.resume(f"compactory-jobs {self._executor} keeper", self._claims.ids):
                    raise Unreachable("Postgres", "an earlier session of this executor has not ended yet")
                self._claimer.read_whole_table(table)
                return table
            self._forget_executor()
        table = JobTable.register(connection, ends_connection, name, self._membership.pool, types)
        self._executor = table.executor
        _name(connection, f"{table.executor} keeper")
        self._claimer.read_whole_table(table)
        self._next.clear()
        return table

    def _forget_executor(self) -> None:
        """Register under a new id after the lease has expired. Claims nothing until running attempts have ended."""
        log.warning("the lease of this executor has expired; it registers again", executor=self._executor)
        self._executor = None
        self._attempts.lease = (0, 0.0)
        self._claims.forget()
        self._attempts.end()

    def _is_due(self, task: str, seconds: float) -> bool:
        """Return True if ``seconds`` have passed since the task was due last."""
        time_ = time.monotonic()
        if time_ < self._next.get(task, 0.0):
            return False
        self._next[task] = time_ + seconds
        return True

    def _round(self, table: JobTable, connection: WatchedConnection, wakeup: Wakeup) -> None:
        begun_at = time.monotonic()
        if spare_chains := self._claims.spare_chains():
            self._wake_threshold = self._attempts.waiting - spare_chains
            self._claimer.receive(table, wakeup.wait(_GATHER))
            self._wake_threshold = 0.0
        if time.monotonic() >= self._next.get("beat", 0.0) + _BEAT_EVERY:
            self._do_due_tasks(table, connection)
        if self.stopping.is_set():
            self._claims.stopping = True
            self._claims.give_back(lambda _: True)
        if self.end_attempts_now.is_set():
            self._attempts.end()
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        has_work = self._work(table, ended)
        if self.stopping.is_set() and self._claims.is_empty and not self._attempts.running():
            table.unregister()
            self._finished.set()
            return
        self._claims.measure(len(ended), max(time.monotonic() - begun_at, 1e-6))
        self._do_due_tasks(table, connection)
        self._sleep(table, wakeup, has_work=has_work, ends=len(ended))

    def _work(self, table: JobTable, ended: list[Ended]) -> bool:
        """Commit outcomes and claim jobs. Return True if there was work.

        Jobs are claimed while outcomes are committed. If groups become free, their jobs are claimed after the commit.
        """
        attempts = self._end_sessions(table, ended)
        ends = self._claims.ends(attempts)
        commit, has_claimed = Commit(), False
        try:
            with table.ends.finish(ends.outcomes, commit):
                if not ends.free_groups:
                    has_claimed = self._claimer.claim(table, ending=len(ends.outcomes))
        finally:
            if commit.ids is None:
                self._ended.extendleft(reversed(attempts))
            else:
                self._claims.settle_ends(ends, commit.ids)
        if ends.free_groups:
            has_claimed = self._claimer.claim(table)
        self._claimer.add_ends(table, attempts, is_alone=self._membership.is_alone)
        has_claimed = self._claimer.claim_limited(table) or has_claimed
        self._tick(table)
        self._board.note(claimed=len(self._claims.ids))
        return bool(attempts) or has_claimed

    def _end_sessions(self, table: JobTable, ended: list[Ended]) -> list[Ended]:
        """End sessions that still work for ended attempts. Return the attempts whose sessions have ended."""
        attempts, self._with_sessions = [*self._with_sessions, *ended], []
        pids = [attempt.session for attempt in attempts if attempt.session]
        try:
            running = table.end_sessions(pids) if pids else set()
        except BaseException:
            self._ended.extendleft(reversed(attempts))
            raise
        self._with_sessions = [attempt for attempt in attempts if attempt.session in running]
        return [attempt for attempt in attempts if attempt.session not in running]

    def _do_due_tasks(self, table: JobTable, connection: WatchedConnection) -> None:
        """Do the tasks that are due: heartbeat, rescues, assignment, retention, samples for metrics, time-outs.

        They follow the claims of a round, because jobs would wait for them. Only a late heartbeat comes first.
        """
        if self._is_due("beat", _BEAT_EVERY):
            self._beat(table)
        if self._executor is not None and self._is_due("follow", _FOLLOW_EVERY):
            self._follow(table)
        if self._is_due("expire", _BEAT_EVERY):
            self._bounded(connection, "expire", lambda: self._expire(table))
        if self._is_due("sample", _SAMPLE_EVERY):
            self._bounded(connection, "sample", lambda: self._sample(connection))
        if self._is_due("whole", _WHOLE_EVERY):
            self._bounded(connection, "whole", lambda: self._membership.find_orphans(table))
            self._claimer.read_whole_table(table)
        self._attempts.end_overdue()
        if self._executor is None:
            raise Unreachable("Postgres", "the lease of this executor has expired; it registers again")

    def _bounded(self, connection: WatchedConnection, task: str, work: Callable[[], object]) -> None:
        """Do a task within a second, because an open snapshot keeps dead rows; else try again much later."""
        try:
            with connection.transaction():
                connection.execute("SET LOCAL statement_timeout = '1s'")
                work()
        except psycopg.errors.QueryCanceled:
            self._next[task] = time.monotonic() + _WHOLE_EVERY

    def _sample(self, connection: WatchedConnection) -> None:
        self._board.note(types=[asdict(item) for item in type_statuses(connection)])

    def _expire(self, table: JobTable) -> None:
        if table.expire(self._keep) >= 10_000:
            self._next["expire"] = 0.0

    def _beat(self, table: JobTable) -> None:
        self._attempts.check_tracing()
        has_changed, has_expired = self._membership.beat(table)
        if not self._membership.registered:
            self._forget_executor()
            return
        self._attempts.lease = (table.executor, table.until)
        if has_changed or self._is_due("limits", _SAMPLE_EVERY):
            self._claimer.follow_limits(table)
        if has_changed:
            self._claimer.read_whole_table(table)
        if has_expired:
            self._next["beat"] = time.monotonic() + 0.1  # meanwhile the sessions of the expired executor end
        running = {attempt.job.id: attempt for attempt in self._attempts.running()}
        for job in table.cancelling(list(running)) if running else ():
            running[job].end()

    def _follow(self, table: JobTable) -> None:
        assigned = self._membership.assigned(table.executor)
        if self._claimer.follow_assignment(table, assigned):
            partitions = list(assigned.partitions) if assigned is not None else []
            self._board.note(
                executor=table.executor, partitions=partitions, worked_at=time.time(), is_ready=True, detail=None
            )

    def _tick(self, table: JobTable) -> None:
        """Enqueue the periodic jobs that have a new tick."""
        if self.stopping.is_set() or not self._jobs.periodic_jobs or not self._is_due("tick", _LONGEST_ROUND):
            return
        clock = table.clock()
        for periodic in self._jobs.periodic_jobs.values():
            tick = periodic.last_tick(clock)
            if self._ticks.get(periodic.name) != tick:
                table.tick(periodic.name, tick, partial(self._jobs.enqueue_many, jobs=[periodic.job]))
                self._ticks[periodic.name] = tick

    def _sleep(self, table: JobTable, wakeup: Wakeup, *, has_work: bool, ends: int) -> None:
        """Wait until there may be work."""
        if ends >= _BUSY:
            wakeup.wake()
        room = self._claims.room()
        if has_work:
            self._pause = _SHORTEST_ROUND
        if self._claims.has_returned or (room and (has_work or self._claimer.reads_anew)):
            return
        if room and not wakeup.asleep and wakeup.sleep():
            return  # claim once more: writers that committed before the lock did not notify
        self._wake_threshold = math.inf
        if not self._ended:
            longest = _LONGEST_ROUND if wakeup.asleep or not room else self._pause
            due = self._claimer.seconds_until_claim() if room else None
            self._claimer.receive(table, wakeup.wait(longest if due is None else min(longest, due)))
            self._pause = min(_LONGEST_ROUND, self._pause * 2)
        self._wake_threshold = 0.0


def _name(connection: WatchedConnection, session: str) -> None:
    connection.execute(sql.SQL("SET application_name = {}").format(sql.Literal(f"compactory-jobs {session}")))
