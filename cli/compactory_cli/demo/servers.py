"""The demo's Postgres and broker: started side by side before anything that takes long to import."""

from __future__ import annotations

from pathlib import Path

from compactory.errors import Unreachable

from ..stack.broker import Broker
from ..stack.port import free_port
from ..stack.postgres import PostgresServer

__all__ = ["Servers"]

_KAFKA_PORT = 19092


class Servers:
    """Both servers. Owned by the thread that calls it: children die with the thread that started them."""

    def __init__(self, scratch: Path) -> None:
        self.postgres = PostgresServer(scratch / "postgres", settings={"fsync": "off"})
        self.broker = Broker(scratch / "broker", port=free_port(_KAFKA_PORT))

    def launch(self) -> None:
        """Start what can start, without waiting for it."""
        self.postgres.prepare()
        self.broker.launch()

    def start_broker(self) -> None:
        """Return when the broker listens; on another port when a demo elsewhere was faster to take this one."""
        try:
            self.broker.start()
        except Unreachable:
            if self.broker.running:
                raise
            self.broker.port = free_port()
            self.broker.start()

    def close(self) -> None:
        """End both."""
        self.postgres.stop()
        self.broker.stop()
