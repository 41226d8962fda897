"""A sink as what it shows of itself: probes, status, metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compactory.worker import Metric

from .sink import TransactionalSink
from .status import CONSUMING_TTL, POLLING_TTL

__all__ = ["SinkWorker"]


class SinkWorker:
    """Implements `compactory.worker.Worker`. Thread-safe. Times are in seconds."""

    def __init__(
        self, sink: TransactionalSink, *, polling_ttl: float = POLLING_TTL, consuming_ttl: float = CONSUMING_TTL
    ) -> None:
        self._sink = sink
        self._polling_ttl = polling_ttl
        self._consuming_ttl = consuming_ttl

    @property
    def name(self) -> str:
        """What it is called in status."""
        return f"sink {self._sink.name}"

    def live(self) -> bool:
        """Whether it polls Kafka and ends batches in time; one that waits for Postgres or Kafka is alive."""
        return self._sink.alive and self._sink.board.live(self._polling_ttl, self._consuming_ttl)

    def ready(self) -> bool:
        """Whether it has reached Postgres and Kafka at some time since the start."""
        return self._sink.board.located

    def blocking(self) -> list[dict[str, Any]]:
        """Return why nothing could be applied yet."""
        return [] if self.ready() else [{"sink": self._sink.name, "detail": self._sink.board.picture()["detail"]}]

    def status(self) -> dict[str, Any]:
        """Return where this process's partitions are."""
        return self._sink.board.picture()

    def metrics(self) -> Iterable[Metric]:
        """Return the figures of every partition."""
        return self._sink.board.metrics(self._sink.name)
