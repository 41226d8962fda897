"""A GlobalStore as a worker: its probes, status and metrics.

A source with ``compactory.heartbeat.interval.ms`` renews a row in its database and publishes it to HEARTBEATS_TOPIC, a
JSON object under the connector's name. A store that has this topic reports how long a commit takes to arrive here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal

import orjson

from compactory.errors import CompactoryError
from compactory.records import Partition, StoreState
from compactory.store import GlobalStore
from compactory.worker import Metric

__all__ = ["HEARTBEATS_TOPIC", "StoreWorker", "heartbeat_ages"]

HEARTBEATS_TOPIC = "compactory-heartbeats"

_MOST_CONNECTORS = 200  # that are told apart
_COUNT_SHARE = 100  # entries of several partitions are counted at most every 100 times as long as counting takes


class StoreWorker:
    """Implements `compactory.worker.Worker`. Thread-safe."""

    name = "store"

    def __init__(self, store: GlobalStore) -> None:
        self._store = store
        self._counts: dict[str, tuple[float, dict[int, int]]] = {}  # directory -> (count again at, its sizes)

    def live(self) -> bool:
        """Return True while the reader lives and does not hang, or is not started yet."""
        return self._store.live

    def ready(self) -> bool:
        """Return True while lookups are answered from data that is kept up to date as far as Kafka allows."""
        return self._store.ready

    def blocking(self) -> list[dict[str, Any]]:
        """Return the partitions that are not read far enough, and the directories that can't be served."""
        return self._store.blocking()

    def directories(self) -> list[dict[str, Any]]:
        """Return the state of each directory."""
        lag, ages, stale = self._store.lag(), self._store.ages(), self._store.stale()
        topics = self._store.topics()
        bad, unusable = self._store.outstanding(), self._store.unusable()
        states = []
        for directory in self._store.directories:
            topic = topics.get(directory.topic)
            partitions = topic.all() if topic is not None else ()
            part_ages = [ages[part] for part in partitions if part in ages]
            age = round(max(part_ages), 3) if partitions and len(part_ages) == len(partitions) else None
            states.append(
                {
                    "name": directory.name,
                    "topic": directory.topic,
                    "key": directory.key,
                    "state": self._state_of(directory.topic, stale).value,
                    "stale": stale.get(directory.topic),
                    "entries": self._entries(directory.name),
                    "bad_records": bad.get(directory.name, 0),
                    "unusable": unusable.get(directory.name),
                    "lag": sum(lag.get(part, 0) for part in partitions),
                    "age_seconds": age,
                    "partitions": len(partitions),
                }
            )
        return states

    def status(self) -> dict[str, Any]:
        """Return the state with its cause, directories and partitions."""
        store = self._store
        positions, ends, topics = store.positions(), store.lag(), store.topics()
        loading = store.loading()
        return {
            "state": store.state.value,
            "stale": store.stale(),
            "loading": None
            if loading.read >= loading.total
            else {"read": loading.read, "total": loading.total, "eta_seconds": loading.eta_seconds},
            "failure": type(store.failure).__name__ if store.failure is not None else None,
            "load_seconds": store.load_seconds,
            "bad_records": store.bad_records,
            "contested_keys": len(store.contested()),
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
        """Return the metrics of each partition, and of the store."""
        store = self._store
        positions, lag, ages = store.positions(), store.lag(), store.ages()
        yield _by_partition("position", "Next offset to read", positions)
        ends = {part: positions.get(part, 0) + offsets for part, offsets in lag.items()}
        yield _by_partition("high_watermark", "End of the partition when last asked", ends)
        yield _by_partition("lag", "Offsets between the position and the end when last asked", lag)
        yield _by_partition("entries", "Live entries that came from the partition", self._sizes())
        yield _metric("errors_total", "Bad records met since the start", store.bad_records)
        yield _metric("loading_ratio", "Part of the load that is read; 1 without a load", self._loaded())
        if store.load_seconds is not None:
            yield _metric("start_seconds", "Seconds that start() took", store.load_seconds)
        if ages:
            help_text = "Seconds since every partition was last known to be applied to its end"
            yield _metric("data_age_seconds", help_text, max(ages.values()))
        yield _metric("live", "1 if the reader lives and does not hang", store.live)
        outstanding = sum(store.outstanding().values())
        yield _metric("errors_outstanding", "Bad records that no newer record of their key has replaced", outstanding)
        yield from self._troubles()
        help_text = "Seconds since the commit of the connector's newest visible heartbeat"
        yield _metric("heartbeat_age_seconds", help_text, heartbeat_ages(store, time.time()), "connector")
        yield from _backend_figures(store.figures())
        yield _metric("ready", "1 if the store answers lookups from current data", store.ready)

    def _loaded(self) -> float:
        """Return how much of what is to be loaded is read, from 0 to 1."""
        loading = self._store.loading()
        return loading.share if loading.total else float(self._store.ready)

    def _troubles(self) -> Iterable[Metric]:
        """Return the metrics that should be zero: topics that are stale, read anew or contested."""
        store = self._store
        topics = sorted({directory.topic for directory in store.directories})
        names = [directory.name for directory in store.directories]
        stale, unusable = store.stale(), store.unusable()
        contested = Counter(contested_key.directory for contested_key in store.contested())
        yield _metric(
            "stale", "1 if the data of the topic is known to be old", {t: t in stale for t in topics}, "topic"
        )
        help_text = "Number of times the topic was read anew, by cause"
        yield _metric("rebuilds_total", help_text, dict(sorted(store.rebuilds().items())), "topic", "cause")
        help_text = "Keys found in two partitions of their topic, at most 1,000"
        yield _metric("contested_keys", help_text, {name: contested[name] for name in names}, "directory")
        help_text = "1 if the directory has only unusable records"
        yield _metric("unusable", help_text, {name: name in unusable for name in names}, "directory")
        help_text = "Reads that demanded fresher data than they got"
        yield _metric("stale_reads_total", help_text, {name: store[name].stale_reads for name in names}, "directory")

    def _state_of(self, topic: str, stale: Mapping[str, str]) -> StoreState:
        """Return the state of a directory: a store is stale where one of its topics is."""
        if self._store.state is StoreState.STALE and topic not in stale:
            return StoreState.READY
        return self._store.state

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
        seconds = time.monotonic() - began
        self._counts[name] = (began + _COUNT_SHARE * seconds if seconds > 0.001 else began, sizes)
        return sizes


def heartbeat_ages(store: GlobalStore, measured_at: float) -> dict[str, float]:
    """Return the seconds since the newest visible heartbeat of each connector was committed, by the clock here.

    Empty where the store has no directory of heartbeats, or does not answer yet. ``measured_at`` is in seconds since
    1970.
    """
    name = next((directory.name for directory in store.directories if directory.topic == HEARTBEATS_TOPIC), None)
    if name is None:
        return {}
    try:
        heartbeats = [(key, store[name].raw(key)) for key in islice(store[name], _MOST_CONNECTORS)]
    except (CompactoryError, KeyError):
        return {}
    return {key: max(0.0, measured_at - at) for key, value in heartbeats if (at := _committed_at(value)) is not None}


def _committed_at(value: bytes) -> float | None:
    """Return when a heartbeat was committed, in seconds since 1970; None for something else."""
    try:
        document = orjson.loads(value)
    except ValueError:
        return None
    at = document.get("committed_at") if isinstance(document, Mapping) else None
    return at / 1000 if isinstance(at, int | float) else None


def _metric(name: str, help_text: str, figures: float | Mapping[Any, float], *labels: str) -> Metric:
    """Return a metric: one figure, or figures by the value of its label or the values of its labels."""
    by_values: Mapping[Any, float] = figures if isinstance(figures, Mapping) else {(): figures}
    samples = {(label,) if isinstance(label, str) else label: float(figure) for label, figure in by_values.items()}
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return Metric(name=f"compactory_store_{name}", kind=kind, help=help_text, labels=labels, samples=samples)


def _by_partition(name: str, help_text: str, values: Mapping[Partition, int]) -> Metric:
    samples = {(part.topic, str(part.partition)): value for part, value in sorted(values.items())}
    return _metric(name, help_text, samples, "topic", "partition")


def _backend_figures(figures: Mapping[tuple[str, str], float]) -> Iterable[Metric]:
    """Return a metric for each figure of the backend, by topic ("" for figures that topics share)."""
    for name in sorted({figure for _, figure in figures}):
        samples = {topic: value for (topic, figure), value in figures.items() if figure == name}
        yield _metric(f"backend_{name}", f"The backend's {name.replace('_', ' ')}", samples, "topic")
