"""Prometheus text: metrics of the workers, durations of requests, and metrics of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from compactory.prometheus import WorkerCollector
from compactory.worker import Worker

__all__ = ["BUCKETS", "Exposition", "RequestMetrics"]

# Upper bounds in seconds. A lookup takes tens of microseconds, a wait for one's own write up to half a minute.
BUCKETS = (0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
           2.5, 5.0, 10.0, 30.0)  # fmt: skip


class RequestMetrics(Collector):
    """Durations of finished requests by route and status, and the number of clients that watch. Thread-safe."""

    def __init__(self, watchers: Callable[[], Mapping[str, int]]) -> None:
        self._watchers = watchers
        self._durations = Histogram(
            "compactory_http_request_seconds",
            "Time from request to answer",
            ["route", "status"],
            registry=None,
            buckets=BUCKETS,
        )
        self._duration_by_label: dict[tuple[str, int], Histogram] = {}

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count one request. ``route`` is a template from a closed set, never a path."""
        duration = self._duration_by_label.get((route, status))
        if duration is None:
            duration = self._duration_by_label[route, status] = self._durations.labels(route, status)
        duration.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of now."""
        for family in self._durations.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        gauge = GaugeMetricFamily("compactory_http_watchers", "Clients that watch changes", labels=["directory"])
        for directory, count in self._watchers().items():
            gauge.add_metric([directory], count)
        yield gauge


class Exposition:
    """Answers ``/metrics``. Has a registry of its own, so that several may live in a process. Thread-safe."""

    def __init__(self, workers: Iterable[Worker], *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in (WorkerCollector(workers), *collectors):
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type, as the scraper's ``Accept`` asks (OpenMetrics or Prometheus)."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
