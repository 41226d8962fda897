"""Figures of a relay, and the state of all topics as the tables have it."""

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
    """One topic. ``oldest`` and ``locked_seconds`` are ages in seconds.

    ``pending`` is counted up to an equal share, for each topic, of 100,000; ``more``: there may be more than that.
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

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def topic_statuses(connection: psycopg.Connection[Any]) -> list[TopicStatus]:
    """Every topic that a relay has seen, or that has messages. Raises psycopg.Error."""
    asked = {"whole": False, "pause": timedelta(), "ttl": timedelta()}
    given = {"topics": [row[0] for row in connection.execute(query("outbox/pending"), asked)]}
    return connection.cursor(row_factory=class_row(TopicStatus)).execute(query("outbox/status"), given).fetchall()


class Board:
    """Figures of one relay. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        self._sent: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._holders: dict[str, frozenset[str]] = {}  # the topics of each thread
        self._topics: list[TopicStatus] = []
        self._error: str | None = None
        self._worked_at: float | None = None

    @contextmanager
    def holding(self, holder: str) -> Iterator[None]:
        """A thread is connected to Postgres and Kafka under this name."""
        with self._lock:
            self._holders[holder] = frozenset()
            self._worked_at, self._error = time.time(), None
        try:
            yield
        finally:
            with self._lock:
                self._holders.pop(holder)

    def sends(self, holder: str, topics: Iterable[str]) -> None:
        """A thread has the locks of these topics, and of no others."""
        with self._lock:
            self._holders[holder] = frozenset(topics)

    def sent(self, topic: str, number: int) -> None:
        """Kafka has so many messages more."""
        with self._lock:
            self._sent[topic] += number

    def set_aside(self, topic: str) -> None:
        """A message was refused."""
        with self._lock:
            self._failed[topic] += 1

    def retried(self, topic: str) -> None:
        """A topic had an error and is left alone."""
        with self._lock:
            self._retries[topic] += 1

    def failed(self, error: str) -> None:
        """Postgres or Kafka is away."""
        with self._lock:
            self._error = error

    def sampled(self, topics: list[TopicStatus]) -> None:
        """Keep a sample of the tables."""
        with self._lock:
            self._topics = topics

    @property
    def holders(self) -> list[str]:
        """Names under which topics are held now."""
        with self._lock:
            return sorted(self._holders)

    def picture(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
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
            }
