"""Prometheus text: metrics of the workers, durations of requests, and metrics of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from compactory.prometheus import WorkerCollector
from compactory.worker import Worker

from ..http.timing import Timing

__all__ = ["Exposition"]


class Exposition:
    """Answers ``/metrics``. Each has a registry of its own, so that several may live in a process. Thread-safe."""

    def __init__(
        self,
        workers: Iterable[Worker],
        timing: Timing | None = None,
        watchers: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(WorkerCollector(workers))
        if timing is not None:
            self._registry.register(_Requests(timing, watchers))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type, as the scraper's ``Accept`` asks (OpenMetrics or Prometheus)."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Requests(Collector):
    def __init__(self, timing: Timing, watchers: Callable[[], Mapping[str, int]]) -> None:
        self._timing = timing
        self._watchers = watchers

    def collect(self) -> Iterator[Family]:
        family = HistogramMetricFamily(
            "compactory_http_request_seconds", "Time from request to answer", labels=["route", "status"]
        )
        for sample in self._timing.samples():
            family.add_metric([sample.route, str(sample.status)], sample.buckets, sample.seconds)
        yield family
        gauge = GaugeMetricFamily("compactory_http_watchers", "Clients that watch changes", labels=["directory"])
        for directory, count in self._watchers().items():
            gauge.add_metric([directory], count)
        yield gauge

    def describe(self) -> list[Family]:
        return []
