"""The figures of a relay, and the state of every topic in the tables."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from compactory_sql import query

__all__ = ["Board", "TopicStatus", "topic_statuses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """The state of a topic. ``oldest`` and ``locked_seconds`` are ages in seconds.

    ``pending`` and ``scheduled`` are counted up to an equal share of 100,000 for each topic; ``more``: there may be
    more pending messages.
    """

    topic: str
    locked_by: str | None
    locked_seconds: float | None
    error: bool
    retries: int
    last_error: str | None
    max_bytes: int | None
    pending: int
    more: bool
    oldest: float
    failed: int
    waiting: int
    scheduled: int

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def topic_statuses(connection: psycopg.Connection[Any]) -> list[TopicStatus]:
    """Return the status of every topic that has messages or had some. Raises psycopg.Error."""
    pending = {"whole": False, "pause": timedelta(), "ttl": timedelta()}
    topics = [row[0] for row in connection.execute(query("outbox/pending"), pending)]
    cursor = connection.cursor(row_factory=class_row(TopicStatus))
    return cursor.execute(query("outbox/status"), {"topics": topics}).fetchall()


class Board:
    """Figures of one relay. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._sent: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._holders: dict[str, frozenset[str]] = {}  # name of a thread → its topics
        self._topics: list[TopicStatus] = []
        self._paused: list[dict[str, str]] = []
        self._error: str | None = None
        self._worked_at: float | None = None

    @contextmanager
    def holding(self, holder: str) -> Iterator[None]:
        """Record that a thread is connected to Postgres and Kafka under this name."""
        with self._lock:
            self._holders[holder] = frozenset()
            self._worked_at, self._error = time.time(), None
        try:
            yield
        finally:
            with self._lock:
                self._holders.pop(holder)

    def sends(self, holder: str, topics: Iterable[str]) -> None:
        """Record the topics whose locks a thread has."""
        with self._lock:
            self._holders[holder] = frozenset(topics)

    def sent(self, topic: str, number: int) -> None:
        """Count sent messages."""
        with self._lock:
            self._sent[topic] += number

    def set_aside(self, topic: str) -> None:
        """Count a refused message."""
        with self._lock:
            self._failed[topic] += 1

    def retried(self, topic: str) -> None:
        """Count an error of a topic, which pauses."""
        with self._lock:
            self._retries[topic] += 1

    def failed(self, error: str) -> None:
        """Record that Postgres or Kafka is away."""
        with self._lock:
            self._error = error

    def sampled(self, topics: list[TopicStatus]) -> None:
        """Record a sample of the tables."""
        with self._lock:
            self._topics = topics

    def paused(self, names: list[dict[str, str]]) -> None:
        """Record what operators have paused."""
        with self._lock:
            self._paused = names

    @property
    def holders(self) -> list[str]:
        """The names under which topics are locked."""
        with self._lock:
            return sorted(self._holders)

    def picture(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        with self._lock:
            return {
                "holders": sorted(self._holders),
                "sending": sorted(set().union(*self._holders.values())),
                "sent": dict(self._sent),
                "failed": dict(self._failed),
                "retries": dict(self._retries),
                "worked_at": self._worked_at,
                "detail": self._error,
                "topics": [topic.fields() for topic in self._topics],
                "paused": self._paused,
            }
