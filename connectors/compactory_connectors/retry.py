"""The rule for repeated attempts of a handler. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["CENTURY", "Retry"]

CENTURY = 3.2e9
"""Seconds of the longest pause, so that Postgres can add the pause to a time."""

_RANDOM = random.Random()  # noqa: S311 - separate, so that a test that seeds the global one does not seed pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The number of attempts, and the pauses between them.

    The first pause takes ``first`` seconds, the next ``factor`` times as many, and so on up to ``limit``. Each is
    lengthened or shortened by up to ``jitter`` of it. After the exceptions of ``give_up`` no further attempt is made.
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

    def ends(self, attempt: int, error: BaseException) -> bool:
        """Return True if no attempt follows this one."""
        return attempt >= self.max_attempts or isinstance(error, self.give_up)

    def problems(self) -> Iterator[str]:
        """Yield the problems of the settings."""
        if self.max_attempts < 1:
            yield "retry: max_attempts must be at least 1"
        if not (0 <= self.first <= CENTURY and 0 <= self.limit <= CENTURY):
            yield f"retry: first and limit must be seconds between 0 and {CENTURY:.0f}, a century"
        if not 1 <= self.factor <= 1000:
            yield "retry: factor must be between 1 and 1000"
        if not 0 <= self.jitter <= 1:
            yield "retry: jitter must be between 0 and 1"
        try:
            isinstance(None, self.give_up)
        except TypeError:
            yield f"retry: give_up must be a tuple of exception classes, not {self.give_up!r}"
