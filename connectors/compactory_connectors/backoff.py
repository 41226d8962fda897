"""Exponential back-off with jitter and a reset."""

from __future__ import annotations

import random

__all__ = ["Backoff"]

_RANDOM = random.Random()  # noqa: S311 - of its own, as a test that seeds the global one must not seed pauses too


class Backoff:
    """Grows from ``first`` to ``limit`` seconds, each pause drawn from the upper half, so that a fleet spreads out.

    Source: Amazon Builders' Library, "Timeouts, retries, and backoff with jitter". Owned by one thread.
    """

    def __init__(self, first: float = 0.1, limit: float = 10.0) -> None:
        self._first = first
        self._limit = limit
        self._attempts = 0

    def pause(self) -> float:
        """The next pause in seconds."""
        pause = min(self._limit, self._first * 2.0**self._attempts)
        self._attempts = min(self._attempts + 1, 32)
        return pause * _RANDOM.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something worked: begin again with short pauses."""
        self._attempts = 0
