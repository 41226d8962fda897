"""A process that stands still: SIGSTOP takes effect later than it is sent, thread by thread."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

__all__ = ["freeze", "frozen"]


def freeze(pid: int, timeout: float = 60.0) -> None:
    """Stop a process with all its threads. They run on for a while where the machine is busy; this waits for the last.

    Raises:
        TimeoutError: a thread still runs after ``timeout`` seconds.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout
    while not frozen(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} still runs {timeout} s after SIGSTOP")
        time.sleep(0.001)


def frozen(pid: int) -> bool:
    """Whether each thread of the process stands still."""
    return all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir())


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
        return "T"
