"""A program of the project in a process of its own, for signals to hit."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.stack.freezing import freeze, frozen

__all__ = ["Mortal"]


class Mortal:
    """Runs ``python -m MODULE ARGUMENT…``."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", module, *arguments])

    def send(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)

    def stopped(self) -> bool:
        """Whether SIGSTOP has hit it."""
        return frozen(self.process.pid)

    def ended(self) -> bool:
        return self.process.poll() is not None

    def freeze(self) -> None:
        if not self.ended():
            freeze(self.process.pid)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def end(self) -> None:
        """Kill it where it still runs."""
        if not self.ended():
            self.process.kill()
            self.process.wait()
