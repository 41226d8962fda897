"""The clock that deadlines and ages are told by."""

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
    """Return what names this run of the machine, through which `clock` goes on; None where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except OSError:
        return None
