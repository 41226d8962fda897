"""A job as it is enqueued and as its handler gets it, and how its attempts follow each other. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

__all__ = ["TENANT", "Cancel", "Job", "NewJob", "Retry", "Snooze"]

TENANT = "tenant"
"""The header that names the tenant."""

_RANDOM = random.Random()  # noqa: S311 - of its own, as a test that seeds the global one must not seed pauses too

P = TypeVar("P")


class Snooze(Exception):
    """Raised by a handler: run the job again after ``seconds``; the attempt does not count."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a job is tried, and the seconds between: ``first``, then ``factor`` times as many, up to ``limit``.

    Each pause is lengthened or shortened by up to ``jitter`` of it. ``give_up`` are exceptions after which no further
    attempt is made.
    """

    max_attempts: int = 25
    first: float = 1.0
    factor: float = 2.0
    limit: float = 3600.0
    jitter: float = 0.25
    give_up: tuple[type[Exception], ...] = ()

    def pause(self, attempt: int) -> float:
        """Seconds from the end of this attempt to the next."""
        pause = min(self.limit, self.first * self.factor ** min(attempt - 1, 64))
        return pause * _RANDOM.uniform(1 - self.jitter, 1 + self.jitter)

    def ends(self, attempt: int, error: Exception) -> bool:
        """Whether this attempt was the last."""
        return attempt >= self.max_attempts or isinstance(error, self.give_up)

    def problems(self) -> Iterator[str]:
        """What is set wrongly."""
        if self.max_attempts < 1:
            yield "retry: max_attempts must be at least 1"
        if self.first < 0 or self.limit < 0 or self.factor < 1:
            yield "retry: first and limit must not be negative, factor not below 1"
        if not 0 <= self.jitter <= 1:
            yield "retry: jitter must be between 0 and 1"
