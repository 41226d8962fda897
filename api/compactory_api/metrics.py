"""Prometheus text made from workers' figures, request times, and the process's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from compactory.worker import Metric, Worker

from .timing import Timing

__all__ = ["Exposition"]


class Exposition:
    """Answers ``/metrics``. Each has a registry of its own, so that several may live in a process. Thread-safe."""

    def __init__(self, workers: Iterable[Worker], timing: Timing | None = None) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Workers(tuple(workers)))
        if timing is not None:
            self._registry.register(_Requests(timing))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type, as the scraper's ``Accept`` asks (OpenMetrics or Prometheus)."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Workers(Collector):
    """Figures of one name from several workers become one family."""

    def __init__(self, workers: tuple[Worker, ...]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for worker in self._workers:
            for metric in worker.metrics():
                family = families.get(metric.name) or families.setdefault(metric.name, _family(metric))
                for values, figure in metric.samples.items():
                    family.add_sample(metric.name, dict(zip(metric.labels, values, strict=True)), figure)
        yield from families.values()

    def describe(self) -> list[Family]:
        return []  # so that registering does not ask the workers


class _Requests(Collector):
    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def collect(self) -> Iterator[Family]:
        family = HistogramMetricFamily(
            "compactory_http_request_seconds", "Time from request to answer", labels=["route", "status"]
        )
        for sample in self._timing.samples():
            family.add_metric([sample.route, str(sample.status)], sample.buckets, sample.seconds)
        yield family

    def describe(self) -> list[Family]:
        return []


def _family(metric: Metric) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
