"""Several processes that do the same work on one socket, and the parent that replaces those that die."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import structlog
import typer

__all__ = ["fork_workers"]

_REST = 1.0  # seconds before a worker that died is replaced
_OUR_CHOICE = (2, 3, 4)  # exit codes of a start that says what is wrong
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


def fork_workers(number: int, listening: Sequence[socket.socket]) -> tuple[Sequence[socket.socket], bool]:
    """Return in each of so many forked children its sockets, and whether it replaces one, so that others serve already.

    The first socket is for all, each other one for one child. Call it before threads or connections are made. The
    parent stays here: it passes SIGTERM and Ctrl-C on, closes its copies of the sockets then, and replaces children
    that end. Only if one of the first can't start, all end. Raises typer.Exit in the parent once all have ended, with
    the first exit code that is not 0.
    """
    running: dict[int, tuple[int, bool]] = {}  # pid → its place from 1 on, and whether it replaces another
    asked = False

    def ask(_sign: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        _close(listening)  # else clients would wait for an answer until the last child has ended
        for pid in running:
            with suppress(ProcessLookupError):  # it has just been waited for
                os.kill(pid, signal.SIGTERM)

    before = {sign: signal.signal(sign, ask) for sign in _SIGNALS}
    parent, forked, code = os.getpid(), 0, 0
    while True:
        while len(running) < number and not asked:
            place, replaces = min({*range(1, number + 1)} - {taken for taken, _ in running.values()}), forked >= number
            with _undisturbed():  # until the child is known, and has its own handlers
                pid = os.fork()
                if not pid:
                    _leave(parent, before)
                    own = listening[place : place + 1]
                    _close({*listening[1:]} - {*own})
                    return [listening[0], *own], replaces
                running[pid] = place, replaces
                forked += 1
        if not running:
            raise typer.Exit(code)
        pid, status = os.wait()
        if pid not in running:  # an orphan: in a container all come to the first process
            continue
        (_, replaces), ended = running.pop(pid), os.waitstatus_to_exitcode(status)
        if not replaces and ended in _OUR_CHOICE and not asked:
            ask(0, None)
            code = ended
        elif not asked:
            structlog.get_logger("compactory.workers").warning("a worker died; another one starts", code=ended)
            time.sleep(_REST)


def _close(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep signals waiting."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _leave(parent: int, handlers: Mapping[signal.Signals, Any]) -> None:
    """Be a process of its own, but for its end: SIGTERM comes when the parent ends, however that happens (Linux)."""
    for sign, handler in handlers.items():
        signal.signal(sign, handler)
    os.setsid()  # Ctrl-C reaches the parent alone: a second signal would cut requests off
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
