"""Clears up after a demo that was killed: a child that does nothing but wait for its parent's end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Janitor"]


class Janitor:
    """Runs ``clear`` when this process ends in whatever way, unless `dismiss` was called before.

    It is a fork, so it must be made while there is one thread only.
    """

    def __init__(self, clear: Callable[[], None]) -> None:
        waiting, self._alive = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(waiting)
            return
        try:
            os.close(self._alive)
            _detach()
            if not os.read(waiting, 1):  # the end of the file: nobody is left to write
                clear()
        finally:
            os._exit(0)

    def dismiss(self) -> None:
        """There is nothing left to clear up."""
        with suppress(OSError):  # it was killed as well
            os.write(self._alive, b".")
        os.close(self._alive)
        with suppress(OSError):
            os.waitpid(self._pid, 0)


def _detach() -> None:
    """Out of reach of the terminal's signals, and holding none of the files that others wait for the end of."""
    os.setsid()
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
