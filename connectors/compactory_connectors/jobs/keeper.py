"""The keeper of an executor: one thread and connection that claim jobs, hand them to threads and end their attempts."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import structlog
from psycopg import sql

from compactory.errors import CompactoryError, Unreachable
from compactory_connectors.database.backoff import Backoff
from compactory_connectors.database.jdbc_url import Connection
from compactory_connectors.database.position import Position
from compactory_connectors.database.postgres_errors import postgres_errors
from compactory_connectors.database.wakeup import Wakeup
from compactory_connectors.database.watched_connection import WatchedConnection
from compactory_sql import JOBS_CHANNEL, JOBS_LOCK_CLASS

from .attempt import Attempts
from .job import NewJob
from .partition_assignment import Assignment
from .registry import Jobs
from .status import Board, type_statuses
from .table import Assigned, Chain, Claimed, JobTable, Outcome, open_jobs

__all__ = ["Keeper"]

log = structlog.get_logger("compactory.jobs")

_BEAT = 2.0  # seconds between heartbeats
_FOLLOW = 0.2  # seconds between looks at the assignment
_SAMPLE = 10.0  # seconds between samples for metrics
_WHOLE = 300.0  # seconds between looks at everything, for jobs that were written past compactory.enqueue
_IDLE = 0.5  # seconds between rounds
_SHORTEST = 0.002  # seconds until another attempt to fall asleep
_BUSY = 100  # jobs at once, from which on writers need not notify
_AHEAD = 0.25  # seconds of work that are claimed before a thread is free
_MOST = 1000  # jobs that are claimed at once
_DEPTH = 20  # jobs of a group that are claimed at once where they are quick
_QUICK = 100.0  # jobs a second that an executor must run for that
_GROUPS = 100  # groups that are claimed at once: each takes a lock in the server's table of locks


@dataclass(frozen=True, slots=True)
class Ended:
    """A chain whose first job has ended; see :class:`Attempts`."""

    chain: Chain
    outcome: Outcome | None
    seconds: float
    committed: bool


class Keeper:
    """Runs in a thread of its own; :meth:`poke` and :meth:`ended` may be called by any."""

    def __init__(
        self, postgres: Connection, jobs: Jobs, concurrency: int, assignment: Assignment, keep: timedelta, board: Board
    ) -> None:
        self._postgres = postgres
        self._jobs = jobs
        self._concurrency = concurrency
        self._assignment = assignment
        self._keep = keep
        self._board = board
        self._attempts = Attempts(concurrency, jobs.handlers, postgres.conninfo, self.ended)
        self.stopping = threading.Event()
        self.hurry = threading.Event()  # attempts are to be ended
        self._finished = threading.Event()
        self._wakeup: Wakeup | None = None
        self._waits = False  # and is to be poked
        self._ending: deque[Ended] = deque()
        self._back: list[Outcome] = []
        self._held: dict[int, int] = {}  # ids of claimed jobs and their tokens
        self._groups: dict[str, None] = {}  # to be looked at; in order
        self._freed: set[str] = set()  # in which a job of ours has ended
        self._executor: int | None = None
        self._executors: tuple[int, ...] = ()
        self._pool: tuple[int, ...] = ()
        self._dead: set[int] = set()  # executors whose jobs are to be taken back
        self._assigned: Assigned | None = None
        self._position = Position.at(0, 0)
        self._full = False
        self._rate = 0.0  # jobs a second
        self._voided = False
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

    def ended(self, chain: Chain, outcome: Outcome | None, seconds: float, committed: bool) -> None:
        """The first job of a chain has ended."""
        self._ending.append(Ended(chain, outcome, seconds, committed))
        if self._waits:
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
                        backoff.reset()
                        while not self._finished.is_set():
                            self._round(table, connection, wakeup)
            except CompactoryError as error:
                self._board.failed(str(error))
                log.warning("jobs are not looked for", error=" ".join(str(error).split()))
                if self.stopping.is_set() and not self._attempts.running():
                    break  # what it holds is rescued by another
                (self._finished if self.stopping.is_set() else self.stopping).wait(backoff.pause())
            finally:
                self._wakeup = None
        self._assignment.stop()
        self._attempts.stop(time.monotonic() + 1.0)

    def _table(self, connection: WatchedConnection) -> JobTable:
        """Register, or go on as the executor that it was."""
        types = sorted(self._jobs.handlers)
        if self._executor is not None:
            _name(connection, f"{self._executor} keeper")
            table = JobTable(connection, self._executor, types)
            if table.beat(self._assignment.pool).registered:
                if not table.resume(f"compactory-jobs {self._executor} keeper", self._held):
                    raise Unreachable("Postgres", "an earlier session of this executor has not ended yet")
                self._look_again(table)
                return table
            self._void()
        table = JobTable.register(connection, f"{socket.gethostname()}:{os.getpid()}", self._assignment.pool, types)
        self._executor = table.executor
        self._attempts.name(str(table.executor))
        _name(connection, f"{table.executor} keeper")
        self._look_again(table)
        self._next.clear()
        return table

    def _void(self) -> None:
        """It was taken for dead: others have its jobs, or will. It claims nothing until its attempts have ended."""
        log.warning("this executor was taken for dead, and begins anew", executor=self._executor)
        self._executor = None
        self._attempts.take_back(lambda _: True)
        for attempt in self._attempts.running():
            attempt.end()
        self._held.clear()
        self._back.clear()
        self._groups.clear()
        self._freed.clear()
        self._voided = True

    def _look_again(self, table: JobTable) -> None:
        """Look at everything from the beginning."""
        self._position = Position.at(0, table.newest())
        table.look_again()
        self._full = True

    def _due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + seconds
        return True

    def _round(self, table: JobTable, connection: WatchedConnection, wakeup: Wakeup) -> None:
        began = time.monotonic()
        self._keep_up(table, connection)
        if self._executor is None:
            raise Unreachable("Postgres", "this executor was taken for dead, and registers again")
        self._stop_where_told()
        ending = [self._ending.popleft() for _ in range(len(self._ending))]
        try:
            found = self._work(table, ending)
        except BaseException:
            self._ending.extendleft(reversed(ending))
            raise
        if self.stopping.is_set() and not self._held and not self._back and not self._attempts.running():
            table.unregister()
            self._finished.set()
            return
        seconds = max(time.monotonic() - began, 1e-6)
        self._rate += (len(ending) / seconds - self._rate) * min(1.0, 5 * seconds)
        self._sleep(wakeup, found, len(ending))

    def _work(self, table: JobTable, ending: list[Ended]) -> bool:
        """End attempts and claim jobs; whether there was anything to do."""
        mine = [
            item
            for item in ending
            if item.outcome is not None and self._held.get(item.outcome.id) == item.outcome.token
        ]
        outcomes = [item.outcome for item in mine if item.outcome is not None and not item.committed] + self._back
        room = self._room()
        assigned = self._assigned or Assigned((), 1)
        batch = table.round(outcomes, assigned, self._position, room)
        for outcome in self._back:
            self._held.pop(outcome.id, None)
        self._back = []
        self._position, self._full = batch.position, batch.full and room > 0
        self._later = batch.later
        for item in ending:
            self._settle(item, batch.ended)
        for job in batch.jobs:
            self._hold([job])
        self._groups.update(dict.fromkeys(batch.groups))
        refused = self._claim_groups(table, assigned) if self._groups and self._room() else True
        self._tick(table, batch.clock)
        self._board.claimed(len(self._held))
        return bool(batch.jobs or ending or self._full or self._back or not refused)

    def _room(self) -> int:
        """How many more jobs to claim."""
        if self.stopping.is_set() or self._assigned is None or (self._voided and self._attempts.running()):
            return 0
        self._voided = False
        ahead = self._concurrency + min(_MOST, int(self._rate * _AHEAD))
        room = max(0, ahead - len(self._held))
        return 0 if room < ahead // 4 else room

    def _claim_groups(self, table: JobTable, assigned: Assigned) -> bool:
        """Claim the first jobs of groups; whether somebody else looks at all of them just now."""
        room = self._room()
        names = list(self._groups)[: min(room, _GROUPS)]
        freed = self._freed.intersection(names)
        depth = min(_DEPTH, room // len(names)) if self._rate > _QUICK else 1
        chains, refused = table.claim_groups(names, freed, assigned, depth)
        for name in names:
            del self._groups[name]
        self._freed -= freed - refused
        self._groups.update(dict.fromkeys(refused))
        for chain in chains:
            self._hold(chain)
        return len(refused) == len(names)

    def _hold(self, chain: Chain) -> None:
        self._held.update((job.id, job.token) for job in chain)
        self._attempts.put(chain)

    def _settle(self, item: Ended, ended: frozenset[int]) -> None:
        """A job of a chain is through: go on with the next, or hand the rest back."""
        job, rest, outcome = item.chain[0], item.chain[1:], item.outcome
        if self._held.get(job.id) != job.token:
            self._board.lost()
            return
        del self._held[job.id]
        lost = outcome is None or not (item.committed or job.id in ended)
        if outcome is None or lost:
            self._board.lost()
            log.warning("an attempt ended after its job was taken over", job=job.id, type=job.type)
        else:
            self._board.ended(job.type, _word(outcome), item.seconds)
            passes = outcome.state in {"succeeded", "cancelled"} or not outcome.holds
            if rest and passes and self._ours(rest[0]) and not self.stopping.is_set():
                self._attempts.put(rest)
                return
        self._back += [Outcome.back(left) for left in rest]
        if job.group is not None:
            self._freed.add(job.group)
            self._groups[job.group] = None

    def _keep_up(self, table: JobTable, connection: WatchedConnection) -> None:
        """What is done now and then: heartbeat, rescues, assignment, retention, figures."""
        if self._due("beat", _BEAT):
            self._beat(table)
        if self._executor is not None and self._due("follow", _FOLLOW):
            self._follow(table)
        if self._due("expire", _BEAT):
            self._bounded(connection, "expire", lambda: self._expire(table))
        if self._due("sample", _SAMPLE):
            self._bounded(connection, "sample", lambda: self._board.sampled(type_statuses(connection)))
        if self._due("whole", _WHOLE):
            self._bounded(connection, "whole", lambda: self._dead.update(table.orphans()))
            self._look_again(table)
        now = time.monotonic()
        for attempt in self._attempts.running():
            limit = attempt.handler.timeout
            if (
                limit is not None
                and not attempt.overdue
                and now - attempt.began > limit
                and not attempt.handler.is_async
            ):
                attempt.overdue = True
                attempt.end()

    def _bounded(self, connection: WatchedConnection, what: str, look: Callable[[], object]) -> None:
        """Do what is not urgent, and later where it takes long: a snapshot that somebody holds keeps dead rows."""
        try:
            with connection.transaction():
                connection.execute("SET LOCAL statement_timeout = '1s'")
                look()
        except psycopg.errors.QueryCanceled:
            self._next[what] = time.monotonic() + _WHOLE

    def _expire(self, table: JobTable) -> None:
        if table.expire(self._keep) >= 10_000:
            self._next["expire"] = 0.0

    def _beat(self, table: JobTable) -> None:
        found = table.beat(self._assignment.pool)
        if not found.registered:
            self._void()
            return
        for executor in found.lapsed:
            log.warning("an executor is taken for dead", executor=executor)
            table.bury(executor)
            self._next["beat"] = time.monotonic() + 0.1  # its sessions end meanwhile
        self._dead |= set(found.lapsed) | set(self._executors).difference(found.all)
        rescued = sum(self._rescue(table, executor) for executor in sorted(self._dead))
        if found.all != self._executors or rescued:
            self._executors = found.all
            self._look_again(table)
        self._pool = found.pool
        running = {attempt.job.id: attempt for attempt in self._attempts.running()}
        for job in table.cancelling(list(running)) if running else ():
            running[job].end()

    def _rescue(self, table: JobTable, executor: int) -> int:
        """Take back the jobs of an executor that has gone, once its sessions have ended; how many there were."""
        rescued = table.rescue(executor)
        if rescued is None:
            return 0
        self._dead.discard(executor)
        if rescued:
            self._board.rescued(len(rescued))
            log.warning("jobs of a dead executor were taken back", executor=executor, jobs=len(rescued))
        return len(rescued)

    def _follow(self, table: JobTable) -> None:
        """See which partitions are ours, and hand back what has not begun of those that are not any more."""
        assigned = self._assignment.assigned(self._pool, table.executor)
        if assigned == self._assigned:
            return
        self._assigned = assigned
        self._give_back(lambda job: not self._ours(job))
        self._look_again(table)
        self._board.follows(table.executor, list(assigned.partitions) if assigned is not None else [])

    def _ours(self, job: Claimed) -> bool:
        return self._assigned is not None and job.place % self._assigned.of in self._assigned.partitions

    def _give_back(self, wanted: Callable[[Claimed], bool]) -> None:
        for chain in self._attempts.take_back(wanted):
            self._back += [Outcome.back(job) for job in chain]

    def _stop_where_told(self) -> None:
        if self.stopping.is_set():
            self._give_back(lambda _: True)
        if self.hurry.is_set():
            for attempt in self._attempts.running():
                if not attempt.stopping:
                    attempt.end()

    def _tick(self, table: JobTable, clock: datetime) -> None:
        """Enqueue periodic jobs whose time has come."""
        if self.stopping.is_set() or not self._jobs.periodic_jobs or not self._due("tick", _IDLE):
            return
        for periodic in self._jobs.periodic_jobs.values():
            tick = periodic.last_tick(clock)
            if self._ticks.get(periodic.name) != tick:
                table.tick(periodic.name, tick, partial(self._enqueue, periodic.job))
                self._ticks[periodic.name] = tick

    def _enqueue(self, job: NewJob, connection: Any) -> None:
        self._jobs.enqueue_many(connection, [job])

    def _sleep(self, wakeup: Wakeup, found: bool, ended: int) -> None:
        """Wait until there may be something to do."""
        if ended >= _BUSY:
            wakeup.wake()
        room = self._room()
        if found:
            self._pause = _SHORTEST
        if self._back or (found and room):
            return
        if room and not wakeup.asleep and wakeup.sleep():
            return  # and look once more: who committed before did not notify
        self._waits = True
        if not self._ending:
            wakeup.wait(min(self._later or _IDLE, _IDLE if wakeup.asleep or not room else self._pause))
            self._pause = min(_IDLE, self._pause * 2)
        self._waits = False


def _name(connection: WatchedConnection, session: str) -> None:
    connection.execute(sql.SQL("SET application_name = {}").format(sql.Literal(f"compactory-jobs {session}")))


def _word(outcome: Outcome) -> str:
    """How an attempt ended, for figures."""
    if outcome.state != "scheduled":
        return outcome.state
    return "handed back" if outcome.refund else "retried"
