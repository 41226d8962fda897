"""Pauses between attempts, and intervals of periodic work."""

from __future__ import annotations

import random
import time

__all__ = ["Backoff", "Interval"]

_RANDOM = random.Random()  # noqa: S311 - separate, so that a test that seeds the global one does not seed pauses


class Backoff:
    """Pauses that grow from ``first`` to ``limit`` seconds. Each is drawn from the upper half, to spread processes.

    Source: Amazon Builders' Library, "Timeouts, retries, and backoff with jitter". Owned by one thread.
    """

    def __init__(self, first: float = 0.1, limit: float = 10.0) -> None:
        self._first = first
        self._limit = limit
        self._attempts = 0

    def pause(self) -> float:
        """Return the next pause in seconds."""
        pause = min(self._limit, self._first * 2.0**self._attempts)
        self._attempts = min(self._attempts + 1, 32)
        return pause * _RANDOM.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._attempts = 0


class Interval:
    """Tells when work of every ``seconds`` is due; with ``at_once`` also at the start. Owned by one thread."""

    def __init__(self, seconds: float, *, at_once: bool = False) -> None:
        self._seconds = seconds
        self._due_at = time.monotonic() + (0.0 if at_once else seconds)

    def is_over(self) -> bool:
        """Return True if the interval is over, and begin the next one."""
        clock = time.monotonic()
        if clock < self._due_at:
            return False
        self._due_at = clock + self._seconds
        return True
