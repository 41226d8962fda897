"""What a sink shows of itself: a picture of the moment, and what probes make of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from compactory.records import Partition
from compactory.worker import Metric

__all__ = ["CONSUMING_TTL", "POLLING_TTL", "Board"]

POLLING_TTL = 300.0
"""Seconds within which a live sink has polled Kafka."""
CONSUMING_TTL = 60.0
"""Seconds within which a live sink ends a batch."""

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
        self._lag: dict[Partition, int] = {}
        self._positions: dict[Partition, int | None] = {}
        self._set_aside: dict[Partition, int] = {}
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
                self._counters["batch_seconds_total"][partition] += time.monotonic() - began  # type: ignore[assignment]

    def polled(self) -> None:
        """Kafka was polled."""
        with self._lock:
            self._polled_at = time.monotonic()

    def applied(self, partition: Partition, records: int, failed: int) -> None:
        """A transaction is committed."""
        with self._lock:
            self._counters["rows_total"][partition] += records
            self._counters["batches_total"][partition] += 1
            self._counters["failed_total"][partition] += failed

    def count(self, name: Literal["seeks_total", "rollbacks_total"], partition: Partition) -> None:
        """One more."""
        with self._lock:
            self._counters[name][partition] += 1

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
            self._positions, self._lag, self._set_aside = dict(positions), dict(lag), dict(set_aside)

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
            gauges = {
                "lag": ("Records that are not applied yet", dict(self._lag)),
                "set_aside": ("Records that are set aside", dict(self._set_aside)),
            }
            counters = {name: (text, dict(self._counters[name])) for name, text in _COUNTERS.items()}
            known = [*self._positions]
        for name, (text, figures) in gauges.items():
            yield _metric(sink, "gauge", name, text, figures)
        for name, (text, figures) in counters.items():
            yield _metric(sink, "counter", name, text, dict.fromkeys(known, 0) | figures)


def _metric(
    sink: str, kind: Literal["counter", "gauge"], name: str, text: str, figures: Mapping[Partition, float]
) -> Metric:
    samples: dict[tuple[str, ...], float] = {
        (sink, part.topic, str(part.partition)): float(figure) for part, figure in figures.items()
    }
    labels = ("sink", "topic", "partition")
    return Metric(name=f"compactory_sink_{name}", kind=kind, help=text, labels=labels, samples=samples)
