"""The keeper of an executor: a thread that claims jobs, gives them to threads, and commits the outcomes. Its states:

    CONNECT    opens two connections, and registers the executor, or goes on as the executor that it was; waits with
               growing pauses while Postgres is away
    ROUNDS     each round: wait for ends of attempts → commit outcomes and claim jobs → do the tasks that are due →
               sleep until there is work
    STOPPING   rounds that claim nothing, until no attempt runs
    FINISHED   the executor is unregistered; its threads end

An error of Postgres leads back to CONNECT. So does a lease that has expired: the executor registers again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog

from compactory.errors import CompactoryError
from compactory_connectors.backoff import Backoff
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.postgres.pausing import Pauses
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.wakeup import Wakeup
from compactory_sql import JOBS_CHANNEL, JOBS_LOCK_CLASS, query

from .attempt import Ended
from .attempts import Attempts
from .claimer import Claimer
from .claims import Claims
from .membership import Membership
from .partition_assignment import Assignment
from .registry import Jobs
from .statements import Commit, JobTable, open_jobs
from .status import Board
from .upkeep import Upkeep

__all__ = ["Keeper"]

log = structlog.get_logger("compactory.jobs")

_LONGEST_ROUND = 0.5  # seconds
_SHORTEST_ROUND = 0.002  # seconds
_GATHER = 0.01  # seconds that a round waits for more ends
_BUSY = 100  # ends in a round from which on writers need not notify


@dataclass(frozen=True, slots=True)
class _Session:
    """The objects that live as long as the connections."""

    table: JobTable
    wakeup: Wakeup
    pauses: Pauses
    upkeep: Upkeep


class Keeper:
    """The keeper of one executor. :meth:`wake` and :meth:`add_ended` are thread-safe."""

    def __init__(
        self, postgres: Connection, jobs: Jobs, concurrency: int, assignment: Assignment, keep: timedelta, board: Board
    ) -> None:
        self._postgres = postgres
        self._jobs = jobs
        self._keep = keep
        self._board = board
        self._attempts = Attempts(concurrency, jobs.handlers, postgres.conninfo, self.add_ended)
        self._claims = Claims(concurrency, self._attempts, board)
        self._claimer = Claimer(self._claims, board)
        self._membership = Membership(assignment, jobs, self._attempts, self._claims, board)
        self.stopping = threading.Event()
        self.end_attempts_now = threading.Event()
        self._finished = threading.Event()
        self._wakeup: Wakeup | None = None
        self._wake_threshold = 0.0  # an end wakes the keeper if fewer chains wait for a thread
        self._ended: deque[Ended] = deque()
        self._with_sessions: list[Ended] = []  # ended attempts whose Postgres sessions still run
        self._pause = _SHORTEST_ROUND
        self._due: tuple[int, dict[str, float]] = (0, {})  # executor, and when its tasks are due
        self._thread = threading.Thread(target=self._run, name="compactory-jobs", daemon=True)

    def start(self) -> None:
        self._attempts.start()
        self._thread.start()

    @property
    def alive(self) -> bool:
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
                with self._connect() as session:
                    while not self._finished.is_set():
                        if session.pauses.have_changed():
                            self._claimer.follow_pauses(session.table, session.pauses)
                        self._round(session)
                        backoff.reset()
            except CompactoryError as error:
                self._board.note(detail=str(error))
                log.warning("the keeper waits for Postgres", error=" ".join(str(error).split()))
                if self.stopping.is_set() and not self._attempts.running():
                    break  # another executor rescues the claimed jobs
                (self._finished if self.stopping.is_set() else self.stopping).wait(backoff.pause())
        self._membership.stop()
        self._attempts.stop(time.monotonic() + 1.0)

    @contextmanager
    def _connect(self) -> Iterator[_Session]:
        """Yield the session of a registered executor that has read the limits. Raises Unreachable, ConfigError."""
        with (
            postgres_errors(self._postgres),
            closing(open_jobs(self._postgres.conninfo, "start")) as connection,
            closing(open_jobs(self._postgres.conninfo, "start")) as ends_connection,
            closing(Wakeup(connection, JOBS_CHANNEL, (JOBS_LOCK_CLASS, 0))) as wakeup,
        ):
            self._wakeup = wakeup
            try:
                pauses = Pauses(connection, "jobs", "job-groups")
                table = self._membership.register(connection, ends_connection)
                self._claimer.begin(table)
                if self._due[0] != table.executor:
                    self._due = table.executor, {}
                parts = self._membership, self._claimer, self._attempts
                upkeep = Upkeep(table, *parts, self._jobs, self._keep, self._board, self._due[1])
                yield _Session(table, wakeup, pauses, upkeep)
            finally:
                self._wakeup = None

    def _round(self, session: _Session) -> None:
        table, wakeup, begun_at = session.table, session.wakeup, time.monotonic()
        if spare_chains := self._claims.spare_chains():
            self._wake_threshold = self._attempts.waiting - spare_chains
            self._claimer.receive(table, wakeup.wait(_GATHER))
            self._wake_threshold = 0.0
        if session.upkeep.is_late():
            session.upkeep.do_due_tasks()
        if self.stopping.is_set():
            self._claims.stopping = True
            self._claims.give_back(lambda _: True)
        if self.end_attempts_now.is_set():
            self._attempts.end()
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        has_work = self._work(table, ended)
        if self.stopping.is_set() and self._claims.is_empty and not self._attempts.running():
            table.connection.execute(query("jobs/unregister"), {"executor": table.executor})
            table.connection.execute(query("jobs/notify"))
            self._finished.set()
            return
        self._claims.measure(len(ended), max(time.monotonic() - begun_at, 1e-6))
        session.upkeep.do_due_tasks()
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
        self._board.note(claimed=len(self._claims.ids))
        return bool(attempts) or has_claimed

    def _end_sessions(self, table: JobTable, ended: list[Ended]) -> list[Ended]:
        """End sessions that still work for ended attempts. Return the attempts whose sessions have ended."""
        attempts, self._with_sessions = [*self._with_sessions, *ended], []
        pids = [attempt.session for attempt in attempts if attempt.session]
        running: set[int] = set()
        try:
            if pids:
                parameters = {"executor": table.executor, "pids": pids}
                running.update(row[0] for row in table.connection.execute(query("jobs/fence_handlers"), parameters))
        except BaseException:
            self._ended.extendleft(reversed(attempts))
            raise
        self._with_sessions = [attempt for attempt in attempts if attempt.session in running]
        return [attempt for attempt in attempts if attempt.session not in running]

    def _sleep(self, table: JobTable, wakeup: Wakeup, *, has_work: bool, ends: int) -> None:
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
