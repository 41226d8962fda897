"""The clock that deadlines and ages are told by."""

from __future__ import annotations

import time

__all__ = ["clock"]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Return seconds of a clock that nobody sets and that goes on while the machine sleeps (where it has one)."""
    return time.clock_gettime(_CLOCK)
