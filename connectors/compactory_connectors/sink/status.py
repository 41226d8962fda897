"""Figures, probes, status and metrics of a sink. Times are in seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from compactory.records import Partition
from compactory.worker import Metric
from compactory_connectors.kafka.group_worker import MemberBoard, MemberWorker
from compactory_connectors.postgres.pausing import paused_metric

__all__ = ["Board", "SinkWorker"]

_COUNTERS = {
    "rows_total": "Records applied",
    "batches_total": "Transactions committed",
    "batch_seconds_total": "Seconds spent in transactions",
    "seeks_total": "Times that the database's offset was not the expected one",
    "rollbacks_total": "Transactions rolled back for an error that will be tried again",
    "failed_total": "Records set aside",
}


@dataclass(slots=True)
class Board(MemberBoard):
    """Figures of one sink in one process. The sink's thread writes them; any thread may read."""

    positions: Mapping[Partition, int | None] = field(default_factory=dict)
    set_aside: Mapping[Partition, int] = field(default_factory=dict)
    rebalances: int = 0
    paused: Sequence[Mapping[str, str]] = ()
    _consuming_since: float | None = None
    _counters: dict[str, Counter[Partition]] = field(default_factory=lambda: {name: Counter() for name in _COUNTERS})

    @contextmanager
    def consuming(self, partition: Partition) -> Iterator[None]:
        """Record a transaction, for the probes."""
        self._consuming_since = begun_at = time.monotonic()
        try:
            yield
        finally:
            self.polled_at, self._consuming_since = time.monotonic(), None
            self.count(partition, batch_seconds=self.polled_at - begun_at)

    def count(self, partition: Partition, **figures: float) -> None:
        """Count seeks, rollbacks, or rows, batches and failed records of a committed transaction."""
        for name, figure in figures.items():
            self._counters[f"{name}_total"][partition] += figure  # type: ignore[assignment]  # floats work

    def live(self, polling_ttl: float, consuming_ttl: float) -> bool:
        """Return True if batches end and Kafka is polled in time."""
        time_, since = time.monotonic(), self._consuming_since
        return time_ - self.polled_at < polling_ttl if since is None else time_ - since < consuming_ttl

    def picture(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        lag, set_aside = self.lag, self.set_aside
        return {
            "partitions": [
                {**part._asdict(), "offset": position, "lag": lag.get(part), "set_aside": set_aside.get(part, 0)}
                for part, position in sorted(self.positions.items())
            ],
            **{name.removesuffix("_total"): sum(dict(counts).values()) for name, counts in self._counters.items()},
            "rebalances": self.rebalances,
            "paused": list(self.paused),
            "detail": self.error,
        }

    def metrics(self, sink: str) -> Iterable[Metric]:
        """Yield the metrics of every partition."""
        yield _metric(sink, "gauge", "lag", "Records that are not applied yet", self.lag)
        yield _metric(sink, "gauge", "set_aside", "Records that are set aside", self.set_aside)
        for name, text in _COUNTERS.items():
            yield _metric(sink, "counter", name, text, dict.fromkeys(self.positions, 0) | self._counters[name])
        yield paused_metric(self.paused)


def _metric(
    sink: str, kind: Literal["counter", "gauge"], name: str, text: str, figures: Mapping[Partition, float]
) -> Metric:
    samples: dict[tuple[str, ...], float] = {
        (sink, part.topic, str(part.partition)): float(figure) for part, figure in figures.items()
    }
    labels = ("sink", "topic", "partition")
    return Metric(name=f"compactory_sink_{name}", kind=kind, help=text, labels=labels, samples=samples)


class SinkWorker(MemberWorker):
    """Implements `compactory.worker.Worker`, for a `TransactionalSink`. Thread-safe."""

    def __init__(self, sink: Any, *, polling_ttl: float = 300.0, consuming_ttl: float = 60.0) -> None:
        super().__init__("sink", sink.name, sink, polling_ttl)
        self._board: Board = sink.board
        self._consuming_ttl = consuming_ttl

    def live(self) -> bool:
        """Return True if the sink polls Kafka and ends batches in time, or waits for a server."""
        return self._member.alive and self._board.live(self._ttl, self._consuming_ttl)

    def status(self) -> dict[str, Any]:
        """Return the figures of this process's partitions."""
        return self._board.picture()

    def metrics(self) -> Iterable[Metric]:
        """Return the metrics of every partition."""
        return self._board.metrics(self._name)
