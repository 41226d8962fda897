"""Threads that run attempts, and the event loop of handlers that are coroutines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from compactory.errors import LeaseLost
from compactory_connectors.loop_thread import LoopThread

from .attempt import Attempt, Ended, failed, job_of
from .handler import Handler
from .handler_connection import AsyncConnections, KeptConnection, Unconnected
from .job import Job
from .rows import Chain, Claimed, Outcome, executor_of
from .trace import attempt_span, collects_spans

__all__ = ["Attempts"]

log = structlog.get_logger("compactory.jobs")

_WARN_EVERY = 10.0  # seconds

_UNTRACED: AbstractContextManager[None] = nullcontext()


class Attempts:
    """``concurrency`` threads, each of which runs the first job of a chain. Thread-safe."""

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
        """The executor's id, and the end of its lease by the monotonic clock. Set by the keeper's thread.

        After the end no handler without a connection is called. The sessions of the other handlers have ended.
        """
        self._traced = collects_spans()  # spans that nobody collects would take a quarter of the time of short jobs
        self._warn_at = 0.0
        self._queue: SimpleQueue[Chain | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards `running`
        self._running: dict[int, Attempt] = {}
        self._connections = AsyncConnections(conninfo)  # of the loop
        self._threads = [
            threading.Thread(target=self._work, name=f"compactory-jobs-{number}", daemon=True)
            for number in range(1, concurrency + 1)
        ]
        self._loop = LoopThread("compactory-jobs-async")

    def start(self) -> None:
        self._loop.start()
        for thread in self._threads:
            thread.start()

    def put(self, chain: Chain) -> None:
        """Run the first job of the chain when a thread is free."""
        self._queue.put(chain)

    def take_back(self, is_unwanted: Callable[[Claimed], bool]) -> list[Chain]:
        """Remove and return the unwanted chains that no thread has started. The first job of a chain decides."""
        waiting: list[Chain | None] = []
        with suppress(Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        unwanted = []
        for chain in waiting:
            if chain is not None and is_unwanted(chain[0]):
                unwanted.append(chain)
            else:
                self._queue.put(chain)
        return unwanted

    @property
    def waiting(self) -> int:
        """The approximate number of chains that no thread has started."""
        return self._queue.qsize()

    def running(self) -> list[Attempt]:
        with self._lock:
            return list(self._running.values())

    def end(self) -> None:
        """Ask every handler to end, once."""
        for attempt in self.running():
            if not attempt.stopping:
                attempt.end()

    def check_tracing(self) -> None:
        """Check again if the service has set up traces."""
        self._traced = collects_spans()

    def end_overdue(self) -> None:
        """Ask functions that exceed their time-out to end. Coroutines are ended by asyncio."""
        time_ = time.monotonic()
        for attempt in self.running():
            limit = attempt.handler.timeout
            if limit is None or attempt.handler.is_async or attempt.overdue or time_ - attempt.began <= limit:
                continue
            attempt.overdue = True
            attempt.end()

    @property
    def alive(self) -> bool:
        return self._loop.alive and all(thread.is_alive() for thread in self._threads)

    def stop(self, deadline: float) -> bool:
        """End the threads once their jobs have ended. Return True if all ended by then (monotonic clock)."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in self._threads)
        if ended and self._loop.alive:
            self._loop.wait_for(self._connections.close())
            self._loop.stop()
        return ended

    def _work(self) -> None:
        connection = KeptConnection(self._conninfo)
        while (chain := self._queue.get()) is not None:
            attempt = Attempt(chain[0], self._handlers[chain[0].type])
            with self._lock:
                self._running[attempt.job.id] = attempt
            try:
                outcome, committed = self._run(attempt, connection)
            finally:
                with self._lock:
                    self._running.pop(attempt.job.id, None)
            self._ended(Ended(chain, outcome, time.monotonic() - attempt.began, committed, attempt.session))
        connection.close()

    def _run(self, attempt: Attempt, connection: KeptConnection) -> tuple[Outcome | None, bool]:
        """Run an attempt; return its outcome (None: the job was taken over), and True if the outcome is committed."""
        claimed, handler = attempt.job, attempt.handler
        success = Outcome(id=claimed.id, token=claimed.token, state="succeeded", history=handler.keeps_history)
        if claimed.cancelling:
            return replace(success, state="cancelled"), False
        executor, until = self.lease
        if executor_of(claimed) != executor or (not handler.takes_connection and time.monotonic() >= until):
            return Outcome.back(claimed), False
        try:
            job = job_of(attempt)
            traced = self._traced or job.headers
            with attempt_span(claimed.type, claimed.attempt, job.headers) if traced else _UNTRACED:
                if handler.is_async:
                    self._await(attempt, job, success)
                elif handler.takes_connection:
                    connection.call(attempt, job, success)
                else:
                    handler.call(job)
        except LeaseLost as lost:
            log.warning("a job was taken over during its attempt", job=claimed.id, type=claimed.type, reason=str(lost))
            return None, True
        except Unconnected as error:
            self._warn_unconnected(error.__cause__)
            return Outcome.back(claimed, 1.0), False
        except BaseException as error:  # noqa: BLE001 - of the handler
            return failed(attempt, error), False
        return success, handler.takes_connection

    def _warn_unconnected(self, reason: BaseException | None) -> None:
        """Log why handlers get no connection, every ten seconds. Their jobs are tried once a second."""
        time_ = time.monotonic()
        if reason is not None and time_ >= self._warn_at:
            self._warn_at = time_ + _WARN_EVERY
            log.warning("handlers get no connection", error=" ".join(str(reason).split()))

    def _await(self, attempt: Attempt, job: Job[Any], success: Outcome) -> None:
        """Run a coroutine on the loop of all threads, and wait for it."""
        attempt.future = self._loop.submit(self._called(attempt, job, success))
        if attempt.stopping:
            attempt.future.cancel()
        attempt.future.result()

    async def _called(self, attempt: Attempt, job: Job[Any], success: Outcome) -> None:
        async with asyncio.timeout(attempt.handler.timeout):
            if attempt.handler.takes_connection:
                await self._connections.call(attempt, job, success)
            else:
                await attempt.handler.function(job)
