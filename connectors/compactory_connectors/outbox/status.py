"""The figures of a relay and of the topics in the tables, as status, metrics and probes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal

import psycopg
from psycopg.rows import class_row

from compactory_connectors import figures
from compactory_connectors.figures import BoardWorker, Figure, by_label
from compactory_sql import query

__all__ = ["Board", "OutboxWorker", "TopicStatus", "topic_statuses"]


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


def topic_statuses(connection: psycopg.Connection[Any]) -> list[TopicStatus]:
    """Return the status of every topic that has messages or had some. Raises psycopg.Error."""
    pending = {"whole": False, "pause": timedelta(), "ttl": timedelta()}
    topics = [row[0] for row in connection.execute(query("outbox/pending"), pending)]
    cursor = connection.cursor(row_factory=class_row(TopicStatus))
    return cursor.execute(query("outbox/status"), {"topics": topics}).fetchall()


def _gauge(name: str, text: str, field_name: str = "") -> Figure:
    """Return the metric of a field of the topics' rows."""
    return Figure(name, text, by_label(field_name or name, "topic"), ("topic",))


def _counter(name: str, text: str) -> Figure:
    """Return the metric of counts by topic, with 0 for the other topics."""
    return Figure(name, text, _of_topics, ("topic",))


def _of_topics(counts: Mapping[str, int], board: Board) -> Mapping[str, int]:
    return {**dict.fromkeys((topic["topic"] for topic in board.topics), 0), **counts}


@dataclass(kw_only=True, eq=False)
class Board(figures.Board):
    """Figures of one relay. Thread-safe."""

    kind = "outbox"
    topics: Annotated[
        Sequence[Mapping[str, Any]],
        _gauge("pending", "Messages that wait to be sent, counted up to 100,000 of all topics"),
        _gauge("scheduled", "Messages that are not due yet, counted up to 100,000 of all topics"),
        _gauge("oldest_age_seconds", "Age of the oldest waiting message; 0 if none waits", "oldest"),
        _gauge("failed", "Messages that Kafka refused and that wait for an operator"),
        _gauge("waiting", "Messages that wait for an earlier one of their key that was refused"),
        _gauge("error", "1 if the topic had an error, and its messages wait for a minute or until Kafka has it"),
        Figure(
            "held",
            "1, with the relay's thread that sends the topic as a label",
            lambda rows, _: {(row["topic"], row["locked_by"]): 1.0 for row in rows if row["locked_by"]},
            ("topic", "holder"),
        ),
    ] = ()
    sent: Annotated[Counter[str], _counter("sent_total", "Messages that this relay has sent")] = field(
        default_factory=Counter
    )
    failed: Annotated[
        Counter[str], _counter("failed_total", "Messages that this relay has set aside because Kafka refused them")
    ] = field(default_factory=Counter)
    retries: Annotated[
        Counter[str], _counter("retries_total", "Errors of topics, after each of which their messages waited")
    ] = field(default_factory=Counter)
    worked_at: float | None = None
    _topics_by_holder: dict[str, frozenset[str]] = field(default_factory=dict)

    @contextmanager
    def holding(self, holder: str) -> Iterator[None]:
        """Record that a thread is connected to Postgres and Kafka under this name."""
        self.sends(holder, ())
        self.note(worked_at=time.time(), is_ready=True, detail=None)
        try:
            yield
        finally:
            with self._lock:
                self._topics_by_holder.pop(holder)

    def sends(self, holder: str, topics: Iterable[str]) -> None:
        with self._lock:
            self._topics_by_holder[holder] = frozenset(topics)

    def count(self, figure: Literal["sent", "failed", "retries"], topic: str, number: int = 1) -> None:
        """Count sent messages, refused messages, or errors of a topic."""
        with self._lock:
            getattr(self, figure)[topic] += number

    @property
    def holders(self) -> list[str]:
        """The names under which topics are locked."""
        with self._lock:
            return sorted(self._topics_by_holder)

    def picture(self) -> dict[str, Any]:
        with self._lock:
            sending = sorted(set().union(*self._topics_by_holder.values()))
        return super().picture() | {"holders": self.holders, "sending": sending}


class OutboxWorker(BoardWorker):
    """Implements `compactory.worker.Worker`. Ready once a thread has connected to Postgres and Kafka."""

    def __init__(self, relay: Any) -> None:
        super().__init__(relay, waits_for="connecting to Postgres and Kafka")
