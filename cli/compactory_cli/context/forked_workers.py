"""Several processes that do the same work on one socket, and the parent that replaces those that die."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from types import FrameType

import structlog
import typer

__all__ = ["fork_workers"]

_REST = 1.0  # seconds before a worker that died is replaced
_OUR_CHOICE = (0, 2, 3, 4)  # exit codes that another try would not change: all workers end
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


def fork_workers(number: int) -> None:
    """Return in each of so many forked children. Call it before threads or connections are made.

    The parent stays here: it passes SIGTERM and Ctrl-C on and replaces children that crash or are killed. Raises
    typer.Exit in it once all have ended, with the first exit code that is not 0.
    """
    running: set[int] = set()
    asked = False

    def ask(_sign: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for pid in running:
            os.kill(pid, signal.SIGTERM)

    before = {sign: signal.signal(sign, ask) for sign in _SIGNALS}
    parent, code = os.getpid(), 0
    while True:
        while len(running) < number and not asked:
            pid = os.fork()
            if not pid:
                for sign, handler in before.items():
                    signal.signal(sign, handler)
                _end_with(parent)
                return
            running.add(pid)
        if not running:
            raise typer.Exit(code)
        pid, status = os.wait()
        running.discard(pid)
        ended = os.waitstatus_to_exitcode(status)
        if not asked and ended in _OUR_CHOICE:
            ask(0, None)
            code = code or ended
        elif not asked:
            structlog.get_logger("compactory.workers").warning("a worker died; another one starts", code=ended)
            time.sleep(_REST)


def _end_with(parent: int) -> None:
    """Have this process get SIGTERM when its parent ends, however that happens (Linux)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
