"""Probes, status and metrics of an executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from compactory.worker import Metric
from compactory_connectors.postgres.pausing import paused_metric

from .executor import JobExecutor

__all__ = ["JobsWorker"]

_WAITING = "waiting for its partitions"


class JobsWorker:
    """Implements `compactory.worker.Worker`. Thread-safe. Labels are types that have a handler or jobs."""

    name = "jobs"

    def __init__(self, executor: JobExecutor) -> None:
        self._executor = executor
        self._ready = False

    def live(self) -> bool:
        """Return True if the threads run, also while they wait for Postgres or Kafka."""
        return self._executor.alive

    def ready(self) -> bool:
        """Return True once the executor has connected to Postgres and has its partitions."""
        self._ready = self._ready or self._executor.board.picture()["worked_at"] is not None
        return self._ready

    def blocking(self) -> list[dict[str, Any]]:
        """Return the reasons why the executor is not ready."""
        return [] if self.ready() else [{"jobs": self._executor.board.picture()["detail"] or _WAITING}]

    def status(self) -> dict[str, Any]:
        """Return the figures of this executor, and of the tables some seconds ago."""
        return self._executor.board.picture()

    def metrics(self) -> Iterable[Metric]:
        """Return the metrics of every type, and of this executor."""
        picture = self._executor.board.picture()
        types: list[dict[str, Any]] = picture["types"]
        yield _metric(
            "gauge", "depth", "Jobs that are not finished, by state, counted up to 100,000 in all", ("type", "state"),
            {(item["type"], item["state"]): item["jobs"] for item in types},
        )  # fmt: skip
        yield _metric(
            "gauge", "oldest_age_seconds", "Seconds since the first scheduled job of the type was due", ("type",),
            {(item["type"],): item["oldest"] for item in types if item["state"] == "scheduled"},
        )  # fmt: skip
        yield _metric(
            "gauge", "type_executors", "Executors that have a handler of a type that has jobs", ("type",),
            {(item["type"],): item["executors"] for item in types},
        )  # fmt: skip
        runs = {(name, outcome): n for name, counts in picture["runs"].items() for outcome, n in counts.items()}
        yield _metric("counter", "runs_total", "Attempts that ended, by outcome", ("type", "outcome"), runs)
        seconds = {(name,): number for name, number in picture["seconds"].items()}
        yield _metric("counter", "run_seconds_total", "Seconds that attempts took", ("type",), seconds)
        for name, text in (
            ("lost", "Attempts that ended after their jobs were taken over"),
            ("rescued", "Jobs that this executor has rescued from expired executors"),
        ):
            yield _metric("counter", f"{name}_total", text, (), {(): picture[name]})
        yield _metric("gauge", "claimed", "Jobs that this executor has claimed", (), {(): picture["claimed"]})
        yield _metric("gauge", "partitions", "Partitions of this executor", (), {(): len(picture["partitions"])})
        yield paused_metric(picture["paused"])


def _metric(
    kind: Literal["counter", "gauge"],
    name: str,
    text: str,
    labels: tuple[str, ...],
    samples: Mapping[Any, float],
) -> Metric:
    values = {key: float(value) for key, value in samples.items()}
    return Metric(name=f"compactory_jobs_{name}", kind=kind, help=text, labels=labels, samples=values)
