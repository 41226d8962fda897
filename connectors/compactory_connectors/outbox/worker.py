"""Probes, status and metrics of a relay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from compactory.worker import Metric
from compactory_connectors.postgres.pausing import paused_metric

from .relay import OutboxRelay

__all__ = ["OutboxWorker"]

_TOPICS: tuple[tuple[str, str, str], ...] = (
    ("pending", "pending", "Messages that wait to be sent, counted up to 100,000 of all topics"),
    ("scheduled", "scheduled", "Messages that are not due yet, counted up to 100,000 of all topics"),
    ("oldest_age_seconds", "oldest", "Age of the oldest waiting message; 0 if none waits"),
    ("failed", "failed", "Messages that Kafka refused and that wait for an operator"),
    ("waiting", "waiting", "Messages that wait for an earlier one of their key that was refused"),
    ("error", "error", "1 if the topic had an error, and its messages wait for a minute or until Kafka has it"),
)
_CONNECTING = "connecting to Postgres and Kafka"
_COUNTERS = (
    ("sent_total", "sent", "Messages that this relay has sent"),
    ("failed_total", "failed", "Messages that this relay has set aside because Kafka refused them"),
    ("retries_total", "retries", "Errors of topics, after each of which their messages waited"),
)


class OutboxWorker:
    """Implements `compactory.worker.Worker`. Thread-safe."""

    name = "outbox"

    def __init__(self, relay: OutboxRelay) -> None:
        self._relay = relay
        self._ready = False

    def live(self) -> bool:
        """Return True if the threads run, also while they wait for Postgres or Kafka."""
        return self._relay.alive

    def ready(self) -> bool:
        """Return True once a thread has connected to Postgres and Kafka."""
        self._ready = self._ready or self._relay.board.picture()["worked_at"] is not None
        return self._ready

    def blocking(self) -> list[dict[str, Any]]:
        """Return the reasons why the relay is not ready."""
        return [] if self.ready() else [{"outbox": self._relay.board.picture()["detail"] or _CONNECTING}]

    def status(self) -> dict[str, Any]:
        """Return the figures of this relay, and the topics as the tables had them some seconds ago."""
        return self._relay.board.picture()

    def metrics(self) -> Iterable[Metric]:
        """Yield the metrics of every topic."""
        picture = self._relay.board.picture()
        topics: list[dict[str, Any]] = picture["topics"]
        for name, field, text in _TOPICS:
            yield _metric("gauge", name, text, {(topic["topic"],): float(topic[field]) for topic in topics})
        for name, field, text in _COUNTERS:
            figures = {(topic["topic"],): 0.0 for topic in topics}
            yield _metric("counter", name, text, figures | {(key,): float(n) for key, n in picture[field].items()})
        holders: dict[tuple[str, ...], float] = {
            (topic["topic"], topic["locked_by"]): 1.0 for topic in topics if topic["locked_by"]
        }
        yield Metric(
            name="compactory_outbox_held",
            kind="gauge",
            help="1, with the relay's thread that sends the topic as a label",
            labels=("topic", "holder"),
            samples=holders,
        )
        yield paused_metric(picture["paused"])


def _metric(kind: Literal["counter", "gauge"], name: str, text: str, samples: dict[tuple[str, ...], float]) -> Metric:
    return Metric(name=f"compactory_outbox_{name}", kind=kind, help=text, labels=("topic",), samples=samples)
