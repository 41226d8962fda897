"""A GlobalStore as what it shows of itself: probes, status, metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from compactory.errors import CompactoryError
from compactory.records import Partition, StoreState
from compactory.store import GlobalStore
from compactory.worker import Metric

__all__ = ["StoreWorker"]

_PARTITION = ("topic", "partition")
_COUNT_SHARE = 100  # entries of several partitions are counted at most every 100 times as long as counting takes


class StoreWorker:
    """Implements `compactory.worker.Worker`. Thread-safe."""

    name = "store"

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._counts: dict[str, tuple[float, dict[int, int]]] = {}  # directory -> (count again at, its sizes)

    def live(self) -> bool:
        """Whether the reader lives, or is yet to be started."""
        return self._store.state not in (StoreState.FAILED, StoreState.CLOSED)

    def ready(self) -> bool:
        """Whether lookups are answered from data that is kept up to date as far as Kafka allows."""
        return self._store.ready

    def blocking(self) -> list[dict[str, Any]]:
        """Return the partitions that are not read far enough."""
        return self._store.blocking()

    def directories(self) -> list[dict[str, Any]]:
        """Return how each directory is."""
        lag, ages = self._store.lag(), self._store.ages()
        topics = self._store.topics()
        found = []
        for directory in self._store.directories:
            topic = topics.get(directory.topic)
            partitions = topic.all() if topic is not None else ()
            known = [ages[part] for part in partitions if part in ages]
            found.append(
                {
                    "name": directory.name,
                    "topic": directory.topic,
                    "state": self._store.state.value,
                    "entries": self._entries(directory.name),
                    "lag": sum(lag.get(part, 0) for part in partitions),
                    "age_seconds": round(max(known), 3) if partitions and len(known) == len(partitions) else None,
                    "partitions": len(partitions),
                }
            )
        return found

    def status(self) -> dict[str, Any]:
        """Return the state with its cause, directories and partitions."""
        store = self._store
        positions, ends, topics = store.positions(), store.lag(), store.topics()
        return {
            "state": store.state.value,
            "failure": type(store.failure).__name__ if store.failure is not None else None,
            "load_seconds": store.load_seconds,
            "bad_records": store.bad_records,
            "directories": self.directories(),
            "partitions": [
                {
                    "topic": part.topic,
                    "topic_id": topics[part.topic].topic_id if part.topic in topics else None,
                    "partition": part.partition,
                    "position": position,
                    "high_watermark": position + ends[part] if part in ends else None,
                    "lag": ends.get(part),
                }
                for part, position in sorted(positions.items())
            ],
        }

    def metrics(self) -> Iterable[Metric]:
        """Return the figures of each partition, and of the store."""
        store = self._store
        positions, lag, ages = store.positions(), store.lag(), store.ages()
        yield _by_partition("position", "Next offset to read", positions)
        ends = {part: positions.get(part, 0) + behind for part, behind in lag.items()}
        yield _by_partition("high_watermark", "End of the partition when last asked", ends)
        yield _by_partition("lag", "Offsets between the position and the end when last asked", lag)
        yield _by_partition("entries", "Live entries that came from the partition", self._sizes())
        yield _single("errors_total", "Bad records met since the start", store.bad_records, kind="counter")
        if store.load_seconds is not None:
            yield _single("start_seconds", "How long start() took", store.load_seconds)
        if ages:
            help_text = "Since every partition was last known to be applied to its end"
            yield _single("data_age_seconds", help_text, max(ages.values()))
        yield _single("ready", "1 where lookups are answered from data that is kept up to date", float(store.ready))

    def _entries(self, name: str) -> int | None:
        try:
            return len(self._store[name])
        except CompactoryError:
            return None  # not ready yet, or closed

    def _sizes(self) -> dict[Partition, int]:
        sizes: dict[Partition, int] = dict.fromkeys(self._store.positions(), 0)
        for directory in self._store.directories:
            for number, count in self._count(directory.name).items():
                part = Partition(directory.topic, number)
                sizes[part] = sizes.get(part, 0) + count
        return sizes

    def _count(self, name: str) -> dict[int, int]:
        again_at, sizes = self._counts.get(name, (0.0, {}))
        began = time.monotonic()
        if began < again_at:
            return sizes
        try:
            sizes = self._store[name].sizes()
        except CompactoryError:
            return {}
        took = time.monotonic() - began
        self._counts[name] = (began + _COUNT_SHARE * took if took > 0.001 else began, sizes)
        return sizes


def _by_partition(name: str, help_text: str, values: dict[Partition, int]) -> Metric:
    samples: dict[tuple[str, ...], float] = {
        (part.topic, str(part.partition)): float(value) for part, value in sorted(values.items())
    }
    return Metric(name=f"compactory_store_{name}", kind="gauge", help=help_text, labels=_PARTITION, samples=samples)


def _single(name: str, help_text: str, value: float, kind: Any = "gauge") -> Metric:
    return Metric(name=f"compactory_store_{name}", kind=kind, help=help_text, samples={(): float(value)})
