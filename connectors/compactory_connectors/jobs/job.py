"""A job as it is enqueued and as its handler gets it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from numbers import Real
from typing import Any, Generic, TypeVar

from compactory_connectors.retry import CENTURY

__all__ = ["TENANT", "Cancel", "Job", "NewJob", "Snooze"]

TENANT = "tenant"
"""The header that names the tenant."""

P = TypeVar("P")


class Snooze(Exception):
    """Raised by a handler: run the job again after ``seconds``; the attempt does not count.

    Below 0 is 0: a time that has passed. Raises ValueError for more than a century, and for what is no number.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        given: object = seconds
        if not (isinstance(given, Real) and given <= CENTURY):  # NaN is not either
            raise ValueError(f"Snooze takes a number of seconds, at most {CENTURY:.0f}, a century: not {seconds!r}")
        self.seconds = max(0.0, float(seconds))


class Cancel(Exception):
    """Raised by a handler: the job is cancelled, with this reason."""


@dataclass(slots=True, kw_only=True)  # not frozen: that takes four times as long to make
class NewJob:
    """A job to be enqueued. ``payload`` is what the type's handler takes; see :meth:`Jobs.enqueue` for the others."""

    type: str
    payload: Any = field(default_factory=dict, repr=False)
    group: str | None = None
    origin: str | None = None
    run_at: datetime | None = None
    last_only: bool = False
    unique_key: str | None = None
    headers: Mapping[str, str] | None = None


@dataclass(slots=True, kw_only=True)  # not frozen either
class Job(Generic[P]):
    """One attempt of a job, for its handler. ``attempt`` counts from 1; times are those of Postgres' clock."""

    id: int
    type: str
    payload: P = field(repr=False)
    group: str | None
    origin: str | None
    attempt: int
    headers: Mapping[str, str]
    run_at: datetime
    created_at: datetime
    asked: Callable[[], bool] = field(default=lambda: False, repr=False)

    @property
    def tenant(self) -> str | None:
        """The tenant that the job was enqueued for."""
        return self.headers.get(TENANT)

    @property
    def stopping(self) -> bool:
        """Whether the handler should end soon: its time is over, it was cancelled, or the executor stops or lost it."""
        return self.asked()
