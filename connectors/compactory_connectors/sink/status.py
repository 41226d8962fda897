"""A sink as what it shows of itself: probes, status, metrics. Times are in seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from compactory.records import Partition
from compactory.worker import Metric

__all__ = ["Board", "SinkWorker"]

_COUNTERS = {
    "rows_total": "Records applied",
    "batches_total": "Transactions committed",
    "batch_seconds_total": "Seconds spent in transactions",
    "seeks_total": "Times that the database's offset was not the expected one",
    "rollbacks_total": "Transactions rolled back for an error that will be tried again",
    "failed_total": "Records set aside",
}


class Board:
    """Figures of one sink in one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._counters: dict[str, Counter[Partition]] = {name: Counter() for name in _COUNTERS}
        self._lag: Mapping[Partition, int] = {}
        self._positions: Mapping[Partition, int | None] = {}
        self._set_aside: Mapping[Partition, int] = {}
        self._error: str | None = None
        self._located = False
        self._polled_at = time.monotonic()
        self._consuming_since: float | None = None
        self.rebalances = 0

    @contextmanager
    def consuming(self, partition: Partition) -> Iterator[None]:
        """A transaction is under way."""
        began = time.monotonic()
        with self._lock:
            self._consuming_since = began
        try:
            yield
        finally:
            with self._lock:
                self._consuming_since = None
                self._polled_at = time.monotonic()
                self._counters["batch_seconds_total"][partition] += self._polled_at - began  # type: ignore[assignment]

    def polled(self) -> None:
        """Kafka was polled."""
        with self._lock:
            self._polled_at = time.monotonic()

    def count(self, partition: Partition, **figures: int) -> None:
        """So many more: seeks, rollbacks, or rows, batches and failed of a transaction that is committed."""
        with self._lock:
            for name, figure in figures.items():
                self._counters[f"{name}_total"][partition] += figure

    def failed(self, error: str) -> None:
        """Something is away, or the sink has stopped."""
        with self._lock:
            self._error = error

    def sampled(
        self,
        positions: Mapping[Partition, int | None],
        lag: Mapping[Partition, int],
        set_aside: Mapping[Partition, int],
    ) -> None:
        """Where our partitions are."""
        with self._lock:
            self._positions, self._lag, self._set_aside = positions, lag, set_aside

    def connected(self) -> None:
        """Postgres and Kafka have answered."""
        with self._lock:
            self._located, self._error = True, None

    def live(self, polling_ttl: float, consuming_ttl: float) -> bool:
        """Whether batches end and Kafka is polled in time."""
        now = time.monotonic()
        with self._lock:
            if self._consuming_since is not None:
                return now - self._consuming_since < consuming_ttl
            return now - self._polled_at < polling_ttl

    @property
    def located(self) -> bool:
        """Whether Postgres and Kafka were ever reached."""
        with self._lock:
            return self._located

    def picture(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        with self._lock:
            return {
                "partitions": [
                    {
                        "topic": part.topic,
                        "partition": part.partition,
                        "offset": position,
                        "lag": self._lag.get(part),
                        "set_aside": self._set_aside.get(part, 0),
                    }
                    for part, position in sorted(self._positions.items())
                ],
                **{name.removesuffix("_total"): sum(figures.values()) for name, figures in self._counters.items()},
                "rebalances": self.rebalances,
                "detail": self._error,
            }

    def metrics(self, sink: str) -> Iterable[Metric]:
        """Figures of every partition."""
        with self._lock:
            zero = dict.fromkeys(self._positions, 0)
            counters = {name: (text, zero | self._counters[name]) for name, text in _COUNTERS.items()}
            lag, set_aside = self._lag, self._set_aside
        yield _metric(sink, "gauge", "lag", "Records that are not applied yet", lag)
        yield _metric(sink, "gauge", "set_aside", "Records that are set aside", set_aside)
        for name, (text, figures) in counters.items():
            yield _metric(sink, "counter", name, text, figures)


def _metric(
    sink: str, kind: Literal["counter", "gauge"], name: str, text: str, figures: Mapping[Partition, float]
) -> Metric:
    samples: dict[tuple[str, ...], float] = {
        (sink, part.topic, str(part.partition)): float(figure) for part, figure in figures.items()
    }
    labels = ("sink", "topic", "partition")
    return Metric(name=f"compactory_sink_{name}", kind=kind, help=text, labels=labels, samples=samples)


class SinkWorker:
    """Implements `compactory.worker.Worker`, for a `TransactionalSink`. Thread-safe."""

    def __init__(self, sink: Any, *, polling_ttl: float = 300.0, consuming_ttl: float = 60.0) -> None:
        self._sink = sink
        self._board: Board = sink.board
        self._ttl = polling_ttl, consuming_ttl
        self.name = f"sink {sink.name}"

    def live(self) -> bool:
        """Whether it polls Kafka and ends batches in time; one that waits for Postgres or Kafka is alive."""
        return self._sink.alive and self._board.live(*self._ttl)

    def ready(self) -> bool:
        """Whether it has reached Postgres and Kafka at some time since the start."""
        return self._board.located

    def blocking(self) -> list[dict[str, Any]]:
        """Return why nothing could be applied yet."""
        return [] if self.ready() else [{"sink": self._sink.name, "detail": self._board.picture()["detail"]}]

    def status(self) -> dict[str, Any]:
        """Return where this process's partitions are."""
        return self._board.picture()

    def metrics(self) -> Iterable[Metric]:
        """Return the figures of every partition."""
        return self._board.metrics(self._sink.name)
