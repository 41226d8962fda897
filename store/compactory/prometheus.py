"""Metrics of workers, of stores above all, for a Prometheus registry. Needs the ``prometheus-client`` package.

from prometheus_client import REGISTRY
from compactory.prometheus import StoreCollector

REGISTRY.register(StoreCollector(store))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from compactory.store import GlobalStore
from compactory.store_worker import StoreWorker
from compactory.worker import Metric, Worker

__all__ = ["StoreCollector", "WorkerCollector"]


class WorkerCollector(Collector):
    """The metrics of workers, asked for when scraped; those of one name from several workers become one family.

    Thread-safe; never waits. Registering asks no worker, so a store need not be started yet.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = tuple(workers)

    def collect(self) -> Iterator[Family]:
        """Yield the families of this moment."""
        families: dict[str, Family] = {}
        for worker in self._workers:
            for metric in worker.metrics():
                family = families.get(metric.name) or families.setdefault(metric.name, _family(metric))
                for values, figure in metric.samples.items():
                    family.add_sample(metric.name, dict(zip(metric.labels, values, strict=True)), figure)
        yield from families.values()

    def describe(self) -> list[Family]:
        """Return nothing, so that registering does not ask the workers."""
        return []


class StoreCollector(WorkerCollector):
    """The metrics of one `GlobalStore`, for a service that serves metrics of its own.

    ``compactory_store_position``, ``…_high_watermark``, ``…_errors_total``, ``…_start_seconds``, and the rest of the
    metrics reference.
    """

    def __init__(self, store: GlobalStore) -> None:
        super().__init__([StoreWorker(store)])


def _family(metric: Metric) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
