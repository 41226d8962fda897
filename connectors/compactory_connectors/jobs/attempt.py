"""Attempts: threads that call handlers, each with the connection that it may ask for, and how attempts end."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import psycopg
import structlog
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from compactory.errors import LeaseLost
from compactory_sql import query

from .handler import Handler
from .job import Cancel, Job, Snooze
from .table import Chain, Claimed, Outcome, executor_of, outcomes_json
from .trace import attempt_span, collects_spans

__all__ = ["Attempt", "Attempts", "Ended"]

log = structlog.get_logger("compactory.jobs")

_ERROR_CHARACTERS = 8000  # of a traceback that is kept
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


_UNTRACED: AbstractContextManager[None] = nullcontext()
_TAKEN = "its executor was taken for dead"


class _Unconnected(Exception):
    """There is no connection for the handler now."""


@dataclass(eq=False, slots=True)
class Attempt:
    """One that runs. ``stopping`` tells the handler to end; the other fields say why, and how to reach it."""

    job: Claimed
    handler: Handler
    began: float = field(default_factory=time.monotonic)
    stopping: bool = False
    overdue: bool = False
    future: Future[Any] | None = None
    session: int = 0
    _connection: psycopg.Connection[Any] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards the connection: others use it later

    def end(self) -> None:
        """Ask the handler to end: cancel it where it is a coroutine, else the statement that it waits for."""
        self.stopping = True
        if self.future is not None:
            self.future.cancel()
        with self._lock:
            if self._connection is not None and not self._connection.closed:
                self._connection.cancel()

    def reached_by(self, connection: psycopg.Connection[Any] | None) -> None:
        """From now on the attempt uses this connection, or none."""
        with self._lock:
            self._connection = connection


class Ended(NamedTuple):
    """A chain whose first job has ended, after so many seconds. ``outcome`` None: it was taken over.

    ``session`` is the process id of a handler's session that may still be at work, and is to be ended first; 0: none.
    """

    chain: Chain
    outcome: Outcome | None
    seconds: float
    committed: bool
    session: int = 0


class Attempts:
    """``concurrency`` threads that run the first job of each chain that they are given. Thread-safe."""

    def __init__(
        self,
        concurrency: int,
        handlers: Mapping[str, Handler],
        conninfo: Mapping[str, Any],
        ended: Callable[[Ended], None],
    ) -> None:
        self._handlers = handlers
        self._conninfo = conninfo
        self._ended = ended
        self.lease: tuple[int, float] = (0, 0.0)
        """The executor, and time.monotonic() until when no other one has its jobs. Set by the keeper's thread.

        Later a handler without a connection does not begin; the sessions of the others have ended.
        """
        self._traced = collects_spans()  # spans that nobody sees would take a quarter of the time of short jobs
        self._queue: SimpleQueue[Chain | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards `running`
        self._running: dict[int, Attempt] = {}
        self._loop: asyncio.AbstractEventLoop  # made by start()
        self._idle: list[tuple[int, psycopg.AsyncConnection[Any]]] = []  # by executor; the loop's
        self._threads = [
            threading.Thread(target=self._work, name=f"compactory-jobs-{number}", daemon=True)
            for number in range(1, concurrency + 1)
        ]
        self._looper = threading.Thread(target=self._turn, name="compactory-jobs-async", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._loop = asyncio.new_event_loop()
        for thread in [*self._threads, self._looper]:
            thread.start()

    def put(self, chain: Chain) -> None:
        """Run the first job of the chain when a thread is free."""
        self._queue.put(chain)

    def take_back(self, wanted: Callable[[Claimed], bool]) -> list[Chain]:
        """Remove and return the chains that no thread has begun and whose first job is wanted."""
        waiting: list[Chain | None] = []
        with suppress(Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        found = [chain for chain in waiting if chain is not None and wanted(chain[0])]
        for chain in waiting:
            if chain is None or not wanted(chain[0]):
                self._queue.put(chain)
        return found

    @property
    def waiting(self) -> int:
        """About how many chains no thread has begun."""
        return self._queue.qsize()

    def running(self) -> list[Attempt]:
        """The attempts under way."""
        with self._lock:
            return list(self._running.values())

    def end(self) -> None:
        """Ask every handler to end, once."""
        for attempt in self.running():
            if not attempt.stopping:
                attempt.end()

    def look_for_tracing(self) -> None:
        """See whether the service has set up traces by now."""
        self._traced = collects_spans()

    def end_overdue(self) -> None:
        """Ask functions that exceed their time-out to end. Coroutines have a time-out of their own."""
        now = time.monotonic()
        for attempt in self.running():
            limit = attempt.handler.timeout
            if limit is None or attempt.handler.is_async or attempt.overdue or now - attempt.began <= limit:
                continue
            attempt.overdue = True
            attempt.end()

    @property
    def alive(self) -> bool:
        """Whether all threads run."""
        return all(thread.is_alive() for thread in [*self._threads, self._looper])

    def stop(self, deadline: float) -> bool:
        """End the threads once their jobs have ended; whether all have by then (time.monotonic())."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in self._threads)
        if ended and self._looper.is_alive():
            asyncio.run_coroutine_threadsafe(self._close_idle(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._looper.join()
        return ended

    def _turn(self) -> None:
        while self._interrupted():
            pass
        self._loop.close()

    def _interrupted(self) -> bool:
        """Run the loop until it is stopped; True if a coroutine ended it, by sys.exit say: its attempt has failed."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            return True
        return False

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop()[1].close()

    def _work(self) -> None:
        kept = _Kept(self._conninfo)
        while (chain := self._queue.get()) is not None:
            attempt = Attempt(chain[0], self._handlers[chain[0].type])
            with self._lock:
                self._running[attempt.job.id] = attempt
            try:
                outcome, committed = self._run(attempt, kept)
            finally:
                with self._lock:
                    self._running.pop(attempt.job.id, None)
            self._ended(Ended(chain, outcome, time.monotonic() - attempt.began, committed, attempt.session))
        kept.close()

    def _run(self, attempt: Attempt, kept: _Kept) -> tuple[Outcome | None, bool]:
        """Run an attempt; how it ended (None: it was taken over), and whether that is committed already."""
        claimed, handler = attempt.job, attempt.handler
        done = Outcome(id=claimed.id, token=claimed.token, state="succeeded")
        if claimed.cancelling:
            return replace(done, state="cancelled"), False
        executor, until = self.lease
        if executor_of(claimed) != executor or (not handler.takes_connection and time.monotonic() >= until):
            return Outcome.back(claimed), False
        try:
            job = _job(attempt)
            traced = self._traced or job.headers
            with attempt_span(claimed.type, claimed.attempt, job.headers) if traced else _UNTRACED:
                if handler.is_async:
                    self._await(attempt, job, done)
                elif handler.takes_connection:
                    _connected(attempt, job, done, kept.connection(executor))
                else:
                    _returned(handler.function(job))
        except LeaseLost as lost:
            log.warning("an attempt had been taken over", job=claimed.id, type=claimed.type, reason=str(lost))
            return None, True
        except _Unconnected:
            return Outcome.back(claimed, 1.0), False
        except BaseException as error:  # noqa: BLE001 - of the handler
            return _failed(attempt, error), False
        return done, handler.takes_connection

    def _await(self, attempt: Attempt, job: Job[Any], done: Outcome) -> None:
        """Run a coroutine on the loop of all threads, and wait for it."""
        attempt.future = asyncio.run_coroutine_threadsafe(self._called(attempt, job, done), self._loop)
        if attempt.stopping:
            attempt.future.cancel()
        attempt.future.result()

    async def _called(self, attempt: Attempt, job: Job[Any], done: Outcome) -> None:
        handler = attempt.handler
        async with asyncio.timeout(handler.timeout):
            if not handler.takes_connection:
                await handler.function(job)
                return
            executor = executor_of(attempt.job)
            connection = await self._async_connection(executor)
            pid = connection.info.backend_pid
            try:
                async with connection.transaction():
                    await handler.function(job, connection)
                    _still_open(connection)
                    cursor = await connection.execute(query("jobs/finish"), outcomes_json([done]))
                    if await cursor.fetchone() is None:
                        raise LeaseLost(_TAKEN)
            finally:
                if _is_over(connection):
                    self._idle.append((executor, connection))
                else:
                    attempt.session = pid
                    await connection.close()

    async def _async_connection(self, executor: int) -> psycopg.AsyncConnection[Any]:
        while self._idle:
            owner, connection = self._idle.pop()
            if owner == executor and not connection.closed:
                return connection
            await connection.close()
        try:
            connection = await psycopg.AsyncConnection.connect(_conninfo(self._conninfo, executor))
            registered = (await connection.execute(query("jobs/registered"), [executor])).rowcount
            await connection.rollback()
        except psycopg.Error as error:
            raise _Unconnected from error
        if not registered:
            await connection.close()
            raise _Unconnected
        return connection


class _Kept:
    """The connection that a thread keeps for handlers. Owned by that thread."""

    def __init__(self, conninfo: Mapping[str, Any]) -> None:
        self._conninfo = conninfo
        self._executor = 0
        self._connection: psycopg.Connection[Any] | None = None

    def connection(self, executor: int) -> psycopg.Connection[Any]:
        """One that works, as far as is known, and is named after the executor. Raises _Unconnected.

        The sessions of an executor that is taken for dead end once its row is gone. One that begins later sees that, so
        that what woke up does not run beside what took over.
        """
        if self._executor != executor or self._connection is None or self._connection.closed:
            self.close()
            try:
                connection = self._connection = psycopg.connect(_conninfo(self._conninfo, executor))
                registered = connection.execute(query("jobs/registered"), [executor]).rowcount
                connection.rollback()
            except psycopg.Error as error:
                raise _Unconnected from error
            if not registered:
                self.close()
                raise _Unconnected
            self._executor = executor
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _connected(attempt: Attempt, job: Job[Any], done: Outcome, connection: psycopg.Connection[Any]) -> None:
    """Call a handler in a transaction that completes its job."""
    attempt.reached_by(connection)
    pid = connection.info.backend_pid
    try:
        with connection.transaction():
            _returned(attempt.handler.function(job, connection))
            _still_open(connection)
            if connection.execute(query("jobs/finish"), outcomes_json([done])).fetchone() is None:
                raise LeaseLost(_TAKEN)
    finally:
        attempt.reached_by(None)
        if not _is_over(connection):
            attempt.session = pid
            connection.close()


def _returned(result: object) -> None:
    """Raise TypeError for a coroutine that a function returned, as nothing has run it."""
    if isinstance(result, Coroutine):
        result.close()
        raise TypeError("the handler returned a coroutine, which did not run: make the handler an async def")


def _still_open(connection: psycopg.BaseConnection[Any]) -> None:
    """Raise RuntimeError where the handler has ended the transaction, as its writes would not commit with the job."""
    if _is_over(connection):
        raise RuntimeError("the handler ended its job's transaction by COMMIT or ROLLBACK: use conn.transaction()")


def _is_over(connection: psycopg.BaseConnection[Any]) -> bool:
    """Whether the transaction has ended, as is known; of a connection that was lost the server may still be at work."""
    return connection.info.transaction_status is TransactionStatus.IDLE


def _conninfo(conninfo: Mapping[str, Any], executor: int) -> str:
    options = {
        "connect_timeout": 10,
        **_KEEPALIVE,
        **conninfo,
        "application_name": f"compactory-jobs {executor} handler",
    }
    return make_conninfo(**options)


def _job(attempt: Attempt) -> Job[Any]:
    claimed = attempt.job
    return Job(
        id=claimed.id,
        type=claimed.type,
        payload=attempt.handler.payload.decode(claimed.payload),
        group=claimed.group,
        origin=claimed.origin,
        attempt=claimed.attempt,
        headers=claimed.headers or {},
        run_at=claimed.run_at,
        created_at=claimed.created_at,
        asked=lambda: attempt.stopping,
    )


def _storable(text: str) -> str:
    """The last characters, without those that Postgres refuses."""
    return text[-_ERROR_CHARACTERS:].replace("\0", "�").encode("utf-8", "replace").decode()


def _failed(attempt: Attempt, error: BaseException) -> Outcome:
    """The outcome of an attempt whose handler raised this."""
    claimed, handler = attempt.job, attempt.handler
    ended = Outcome(id=claimed.id, token=claimed.token, state="cancelled", holds=handler.on_failure == "wait")
    if isinstance(error, Snooze):
        return Outcome.back(claimed, error.seconds)
    if isinstance(error, Cancel):
        return replace(ended, error=_storable(str(error)) or "cancelled by its handler")
    if attempt.stopping and not attempt.overdue:
        return Outcome.back(claimed)  # or cancelled, where that was asked for
    text = _storable("".join(traceback.format_exception(error)))
    if attempt.overdue or isinstance(error, TimeoutError | CancelledError):
        text = f"timed out after {time.monotonic() - attempt.began:.1f} s\n{text}"
    log.warning("a job failed", job=claimed.id, type=claimed.type, attempt=claimed.attempt, error=type(error).__name__)
    cause = error if isinstance(error, Exception) else RuntimeError()
    if handler.retry.ends(claimed.attempt, cause):
        return replace(ended, state="failed", error=text)
    return replace(ended, state="scheduled", delay=handler.retry.pause(claimed.attempt), error=text)
