"""The keeper of an executor: one thread and connection that claim jobs, hand them to threads and end their attempts."""

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
from compactory_connectors.postgres.position import Position
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.wakeup import Wakeup
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import JOBS_CHANNEL, JOBS_LOCK_CLASS

from .attempt import Ended
from .attempts import Attempts
from .claims import Claims
from .membership import Membership
from .partition_assignment import Assignment
from .registry import Jobs
from .statements import Assigned, Batch, JobTable, open_jobs
from .status import Board, type_statuses

__all__ = ["Keeper"]

log = structlog.get_logger("compactory.jobs")

_BEAT = 2.0  # seconds between heartbeats
_FOLLOW = 0.2  # seconds between looks at the assignment
_SAMPLE = 10.0  # seconds between samples for metrics
_WHOLE = 300.0  # seconds between looks at everything, for jobs that were written past compactory.enqueue
_IDLE = 0.5  # seconds between rounds
_SHORTEST = 0.002  # seconds until another attempt to fall asleep
_GATHER = 0.01  # seconds that a round waits for further ends, at most
_BUSY = 100  # jobs at once, from which on writers need not notify


class Keeper:
    """Runs in a thread of its own; :meth:`poke` and :meth:`ended` may be called by any."""

    def __init__(
        self, postgres: Connection, jobs: Jobs, concurrency: int, assignment: Assignment, keep: timedelta, board: Board
    ) -> None:
        self._postgres = postgres
        self._jobs = jobs
        self._keep = keep
        self._board = board
        self._membership = Membership(assignment, board)
        self._attempts = Attempts(concurrency, jobs.handlers, postgres.conninfo, self.ended)
        self._claims = Claims(concurrency, self._attempts, board)
        self.stopping = threading.Event()
        self.hurry = threading.Event()  # attempts are to be ended
        self._finished = threading.Event()
        self._wakeup: Wakeup | None = None
        self._poked_below = 0.0  # so many chains that wait for a thread
        self._ending: deque[Ended] = deque()
        self._left: list[Ended] = []  # attempts with sessions that have not ended yet
        self._executor: int | None = None
        self._position = Position.at(0, 0)
        self._pause = _SHORTEST
        self._later: float | None = None  # seconds until the next job comes due
        self._next: dict[str, float] = {}
        self._ticks: dict[str, datetime] = {}
        self._thread = threading.Thread(target=self._run, name="compactory-jobs", daemon=True)

    def start(self) -> None:
        """Run in the background."""
        self._attempts.start()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether all of its threads run."""
        return self._thread.is_alive() and self._attempts.alive

    def join(self, timeout: float) -> bool:
        """Wait until everything has ended or was handed back; False where it has not in time."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def poke(self) -> None:
        """Have it look up."""
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.poke()

    def ended(self, item: Ended) -> None:
        """The first job of a chain has ended."""
        self._ending.append(item)
        if self._attempts.waiting < self._poked_below:
            self.poke()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._finished.is_set():
            try:
                with (
                    postgres_errors(self._postgres),
                    closing(open_jobs(self._postgres.conninfo, "start")) as connection,
                ):
                    wakeup = Wakeup(connection, JOBS_CHANNEL, (JOBS_LOCK_CLASS, 0))
                    with closing(wakeup):
                        self._wakeup = wakeup
                        table = self._table(connection)
                        self._attempts.lease = (table.executor, table.until)
                        while not self._finished.is_set():
                            self._round(table, connection, wakeup)
                            backoff.reset()
            except CompactoryError as error:
                self._board.note(detail=str(error))
                log.warning("jobs are not looked for", error=" ".join(str(error).split()))
                if self.stopping.is_set() and not self._attempts.running():
                    break  # the jobs that it has claimed are rescued by another
                (self._finished if self.stopping.is_set() else self.stopping).wait(backoff.pause())
            finally:
                self._wakeup = None
        self._membership.stop()
        self._attempts.stop(time.monotonic() + 1.0)

    def _table(self, connection: WatchedConnection) -> JobTable:
        """Register, or go on as the executor that it was."""
        name, types = f"{socket.gethostname()}:{os.getpid()}", sorted(self._jobs.handlers)
        if self._executor is not None:
            _name(connection, f"{self._executor} keeper")
            table = JobTable(connection, self._executor, name, types)
            if table.beat(self._membership.pool).registered:
                if not table.resume(f"compactory-jobs {self._executor} keeper", self._claims.ids):
                    raise Unreachable("Postgres", "an earlier session of this executor has not ended yet")
                self._look_again(table)
                return table
            self._void()
        table = JobTable.register(connection, name, self._membership.pool, types)
        self._executor = table.executor
        _name(connection, f"{table.executor} keeper")
        self._look_again(table)
        self._next.clear()
        return table

    def _void(self) -> None:
        """It was taken for dead: others have its jobs, or will. It claims nothing until its attempts have ended."""
        log.warning("this executor was taken for dead, and begins anew", executor=self._executor)
        self._executor = None
        self._attempts.lease = (0, 0.0)
        self._claims.void()
        self._attempts.end()

    def _look_again(self, table: JobTable) -> None:
        """Look at everything from the beginning."""
        self._position = Position.at(0, table.newest())
        table.look_again()

    def _due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + seconds
        return True

    def _round(self, table: JobTable, connection: WatchedConnection, wakeup: Wakeup) -> None:
        began = time.monotonic()
        if spare := self._claims.spare():
            self._poked_below = self._attempts.waiting - spare
            wakeup.wait(_GATHER)
            self._poked_below = 0.0
        self._keep_up(table, connection)
        if self._executor is None:
            raise Unreachable("Postgres", "this executor was taken for dead, and registers again")
        if self.stopping.is_set():
            self._claims.stopping = True
            self._claims.give_back(lambda _: True)
        if self.hurry.is_set():
            self._attempts.end()
        ending = [self._ending.popleft() for _ in range(len(self._ending))]
        found = self._work(table, ending)
        if self.stopping.is_set() and self._claims.none and not self._attempts.running():
            table.unregister()
            self._finished.set()
            return
        self._claims.measure(len(ending), max(time.monotonic() - began, 1e-6))
        self._sleep(wakeup, found, len(ending))

    def _work(self, table: JobTable, ending: list[Ended]) -> bool:
        """End attempts and claim jobs; whether there was anything to do."""
        ending, self._left = [*self._left, *ending], []
        try:
            if pids := [item.session for item in ending if item.session]:
                left = table.end_sessions(pids)
                self._left = [item for item in ending if item.session in left]
                ending = [item for item in ending if item.session not in left]
            ends = self._claims.ends(ending)
            ended = table.finish(ends.outcomes) if ends.outcomes else frozenset()
        except BaseException:
            self._ending.extendleft(reversed(ending))
            raise
        self._claims.settle_ends(ends, ended)
        request = self._claims.request()
        batch = Batch(position=self._position)
        if request.limit:
            batch = table.claim(request, self._claims.assigned or Assigned((), 1), self._position)
            self._position, self._later = batch.position, batch.later
        self._claims.settle(request, batch)
        self._tick(table)
        self._board.note(claimed=len(self._claims.ids))
        looked = len(batch.refused) < len(request.groups)
        return bool(ending or batch.chains or batch.found or looked or batch.full)

    def _keep_up(self, table: JobTable, connection: WatchedConnection) -> None:
        """Do what is due: heartbeat, rescues, assignment, retention, samples for metrics, time-outs."""
        if self._due("beat", _BEAT):
            self._beat(table)
        if self._executor is not None and self._due("follow", _FOLLOW):
            self._follow(table)
        if self._due("expire", _BEAT):
            self._bounded(connection, "expire", lambda: self._expire(table))
        if self._due("sample", _SAMPLE):
            self._bounded(connection, "sample", lambda: self._sample(connection))
        if self._due("whole", _WHOLE):
            self._bounded(connection, "whole", lambda: self._membership.look_for_orphans(table))
            self._look_again(table)
        self._attempts.end_overdue()

    def _bounded(self, connection: WatchedConnection, what: str, look: Callable[[], object]) -> None:
        """Do something that is not urgent, and later if it takes a second: an open snapshot keeps dead rows."""
        try:
            with connection.transaction():
                connection.execute("SET LOCAL statement_timeout = '1s'")
                look()
        except psycopg.errors.QueryCanceled:
            self._next[what] = time.monotonic() + _WHOLE

    def _sample(self, connection: WatchedConnection) -> None:
        self._board.note(types=[asdict(item) for item in type_statuses(connection)])

    def _expire(self, table: JobTable) -> None:
        if table.expire(self._keep) >= 10_000:
            self._next["expire"] = 0.0

    def _beat(self, table: JobTable) -> None:
        self._attempts.look_for_tracing()
        changed, buried = self._membership.beat(table)
        if not self._membership.registered:
            self._void()
            return
        self._attempts.lease = (table.executor, table.until)
        if changed:
            self._look_again(table)
        if buried:
            self._next["beat"] = time.monotonic() + 0.1  # its sessions end meanwhile
        running = {attempt.job.id: attempt for attempt in self._attempts.running()}
        for job in table.cancelling(list(running)) if running else ():
            running[job].end()

    def _follow(self, table: JobTable) -> None:
        """Look at the assignment. Give back jobs of partitions that were lost, unless a thread has begun them."""
        assigned = self._membership.assigned(table.executor)
        if assigned == self._claims.assigned:
            return
        self._claims.assigned = assigned
        self._claims.give_back(lambda job: not self._claims.ours(job))
        self._look_again(table)
        partitions = list(assigned.partitions) if assigned is not None else []
        self._board.note(executor=table.executor, partitions=partitions, worked_at=time.time(), detail=None)

    def _tick(self, table: JobTable) -> None:
        """Enqueue periodic jobs whose time has come."""
        if self.stopping.is_set() or not self._jobs.periodic_jobs or not self._due("tick", _IDLE):
            return
        clock = table.clock()
        for periodic in self._jobs.periodic_jobs.values():
            tick = periodic.last_tick(clock)
            if self._ticks.get(periodic.name) != tick:
                table.tick(periodic.name, tick, partial(self._jobs.enqueue_many, jobs=[periodic.job]))
                self._ticks[periodic.name] = tick

    def _sleep(self, wakeup: Wakeup, found: bool, ended: int) -> None:
        """Wait until there may be something to do."""
        if ended >= _BUSY:
            wakeup.wake()
        room = self._claims.room()
        if found:
            self._pause = _SHORTEST
        if self._claims.handing_back or (found and room):
            return
        if room and not wakeup.asleep and wakeup.sleep():
            return  # and look once more: writers that committed before did not notify
        self._poked_below = math.inf
        if not self._ending:
            later = _IDLE if self._later is None else self._later
            wakeup.wait(min(later, _IDLE if wakeup.asleep or not room else self._pause))
            self._pause = min(_IDLE, self._pause * 2)
        self._poked_below = 0.0


def _name(connection: WatchedConnection, session: str) -> None:
    connection.execute(sql.SQL("SET application_name = {}").format(sql.Literal(f"compactory-jobs {session}")))
