"""The demo's Postgres and broker, started in parallel before slow imports."""

from __future__ import annotations

from pathlib import Path

from compactory.errors import Unreachable

from ..stack.broker import Broker
from ..stack.port import free_port
from ..stack.postgres import PostgresServer

__all__ = ["Servers"]

_KAFKA_PORT = 19092


class Servers:
    """Postgres and the broker. Both end with the thread that started them."""

    def __init__(self, scratch: Path) -> None:
        self.postgres = PostgresServer(scratch / "postgres", settings={"fsync": "off"})
        self.broker = Broker(scratch / "broker", port=free_port(_KAFKA_PORT))

    def launch(self) -> None:
        """Start initdb and the broker without waiting for them."""
        self.postgres.prepare()
        self.broker.launch()

    def start_broker(self) -> None:
        """Wait until the broker listens; on another port if a process has taken the first one meanwhile."""
        try:
            self.broker.start()
        except Unreachable:
            if self.broker.running:
                raise
            self.broker.port = free_port()
            self.broker.start()

    def close(self) -> None:
        """Stop both servers."""
        self.postgres.stop()
        self.broker.stop()
