"""An attempt: the job for its handler, and the outcome."""

from __future__ import annotations

import threading
import time
import traceback
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import psycopg
import structlog

from compactory_connectors.handler_errors import described

from .handler import Handler
from .job import Cancel, Job, Snooze
from .rows import Chain, Claimed, Outcome

__all__ = ["Attempt", "Ended", "failed", "job_of"]

log = structlog.get_logger("compactory.jobs")

_ERROR_CHARACTERS = 8000  # of a traceback that is kept


@dataclass(eq=False, slots=True)
class Attempt:
    """A running attempt. ``stopping``: the handler is asked to end. ``overdue``: because its time-out has passed."""

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
        """Ask the handler to end: cancel its coroutine, or the statement that it waits for. Thread-safe."""
        self.stopping = True
        if self.future is not None:
            self.future.cancel()
        with self._lock:
            if self._connection is not None and not self._connection.closed:
                self._connection.cancel()

    def set_connection(self, connection: psycopg.Connection[Any] | None) -> None:
        """Set the connection that :meth:`end` cancels; None: none."""
        with self._lock:
            self._connection = connection


class Ended(NamedTuple):
    """A chain whose first job has ended. ``outcome`` None: the job was taken over. ``committed``: so is the outcome.

    ``session`` is the pid of a Postgres session that may still work for the handler and must be ended first; 0: none.
    """

    chain: Chain
    outcome: Outcome | None
    seconds: float
    committed: bool
    session: int = 0


def job_of(attempt: Attempt) -> Job[Any]:
    """Return the job as the handler of an attempt gets it. Raises WriteRefused for a payload that does not fit."""
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
        is_stopping=lambda: attempt.stopping,
    )


def _storable(text: str) -> str:
    """Return the last characters, without those that Postgres refuses."""
    return text[-_ERROR_CHARACTERS:].replace("\0", "�").encode("utf-8", "replace").decode()


def failed(attempt: Attempt, error: BaseException) -> Outcome:
    """Return the outcome of an attempt whose handler raised this error, and log a failure.

    The log has the class of the error. The traceback may contain the payload, so it is kept in the table only.
    """
    claimed, handler = attempt.job, attempt.handler
    outcome = Outcome(id=claimed.id, token=claimed.token, state="cancelled", holds=handler.on_failure == "wait")
    if isinstance(error, Snooze):
        return Outcome.back(claimed, error.seconds)
    if isinstance(error, Cancel):
        return replace(outcome, error=_storable(str(error)) or "cancelled by its handler")
    if attempt.stopping and not attempt.overdue:
        return Outcome.back(claimed)  # finish() cancels it if an operator has asked for that
    text = _storable("".join(traceback.format_exception(error)))
    if attempt.overdue or isinstance(error, TimeoutError | CancelledError):
        text = f"timed out after {time.monotonic() - attempt.began:.1f} s\n{text}"
    log.warning(
        "a job failed",
        job=claimed.id,
        type=claimed.type,
        attempt=claimed.attempt,
        error=described(error),
        traceback=f"compactory jobs show {claimed.id}",
    )
    cause = error if isinstance(error, Exception) else RuntimeError()
    if handler.retry.ends(claimed.attempt, cause):
        return replace(outcome, state="failed", error=text)
    return replace(outcome, state="scheduled", delay=handler.retry.pause(claimed.attempt), error=text)
