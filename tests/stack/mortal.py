"""A program of the project in a process of its own, for signals to hit."""

from __future__ import annotations

import os
import runpy
import signal
import sys

from tests.stack.command import fork_server
from tests.stack.freezing import freeze, frozen

__all__ = ["Mortal"]


class Mortal:
    """Runs ``python -m MODULE ARGUMENT…``."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = fork_server().Process(target=_run, args=(module, arguments))
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send(self, sign: signal.Signals) -> None:
        os.kill(self.pid, sign)

    def stopped(self) -> bool:
        """Whether SIGSTOP has hit it."""
        return frozen(self.pid)

    def ended(self) -> bool:
        return not self.process.is_alive()

    def freeze(self) -> None:
        if not self.ended():
            freeze(self.pid)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def end(self) -> None:
        """Kill it where it still runs."""
        if not self.ended():
            self.process.kill()
            self.process.join()


def _run(module: str, arguments: tuple[str, ...]) -> None:
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__")
