"""A child process of the development stack."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from compactory.errors import Unreachable

from .port import free_port

__all__ = ["Process", "Server"]

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Ask Linux to kill this child when the starting thread ends, so that no child outlives a kill -9."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A child process with its output in ``log``.

    It runs in a session of its own, so Ctrl-C in the terminal reaches only the parent, which then stops it in order.
    On Linux it dies with the thread that called :meth:`start`; start it from one that lives on. Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(part) for part in command]
        self._environment = dict(environment or {})
        self._user = user
        self._folder = folder
        self._stop_signal = signal.SIGTERM
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._child.pid if self.running and self._child else None

    @property
    def running(self) -> bool:
        """Return True while the child runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def is_paused(self) -> bool:
        """Return True while the child is stopped by SIGSTOP."""
        import psutil  # type: ignore[import-untyped]  # of the demo extra, without which no child starts

        with contextlib.suppress(psutil.NoSuchProcess):
            return self.pid is not None and psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def start(self) -> None:
        """Start the child; nothing happens when it runs already."""
        if self.running:
            return
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment},
                cwd=self._folder,
                start_new_session=True,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one prctl, no locks
            )

    def wait_until(self, ready: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until ``ready()`` returns True.

        Raises Unreachable, with the end of the log, when the child ends first or ``timeout`` seconds pass.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise Unreachable(self.name, f"{self.name} ended while starting:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise Unreachable(self.name, f"{self.name} is not ready after {timeout:.0f} s:\n{self.tail()}")
            time.sleep(0.02)

    def stop(self, timeout: float = 20.0) -> None:
        """Ask the child to end, and kill it after ``timeout`` seconds. Safe to call twice."""
        if not self.running or self._child is None:
            return
        self._child.send_signal(self._stop_signal)
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for the child to end and return its exit code. Raises Unreachable after ``timeout`` seconds."""
        assert self._child is not None
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Unreachable(self.name, f"{self.name} did not end within {timeout:.0f} s:\n{self.tail()}") from None

    def kill(self) -> None:
        """Send SIGKILL to the child and its descendants, and wait until they have ended.

        Children of Postgres have sessions of their own, and hold its shared memory until they end.
        """
        if self._child is None:
            return
        import psutil

        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(self._child.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        for descendant in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
        self._child.wait()
        psutil.wait_procs(descendants, 10)

    def signal(self, sign: signal.Signals) -> None:
        """Send any signal (SIGSTOP, SIGCONT …) to the child."""
        if self._child is not None and self.running:
            self._child.send_signal(sign)

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Server(Process):
    """A server on 127.0.0.1 in a folder of its own, which :meth:`remove` deletes; by default a temporary one."""

    def __init__(self, name: str, home: Path | None = None, *, port: int | None = None) -> None:
        self.home = home or Path(tempfile.mkdtemp(prefix="compactory-server-"))
        self.port = port or free_port()
        super().__init__(name, (), log=self.home / f"{name}.log", folder=self.home)

    def remove(self) -> None:
        """End the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
