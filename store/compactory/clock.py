"""The clock that measures deadlines and ages."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

__all__ = ["boot", "clock"]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Return seconds of a clock that nobody sets and that goes on while the machine sleeps (where it has one)."""
    return time.clock_gettime(_CLOCK)


@cache
def boot() -> str | None:
    """Return the id of the last boot, or None if the system has no such id. `clock` starts anew at each boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except OSError:
        return None
