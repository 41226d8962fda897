"""The relay: a keeper that finds topics with messages and renews locks, and senders.

The keeper puts topics into a queue. A sender takes them from the queue, locks them and sends them; see `sender`.
States of the keeper:

    AWAKE    reads the table in rounds, with pauses that grow from 2 ms to half a second while no topic has messages
    ASLEEP   writers notify; reads the table after a notification, or after half a second
    WAITING  Postgres is away; pauses with growing back-off, then connects again and is AWAKE
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Self

import structlog

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.backoff import Backoff, Interval
from compactory_connectors.postgres.jdbc_url import Connection, checked_url
from compactory_connectors.postgres.pausing import Pauses
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.wakeup import Wakeup
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import OUTBOX_CHANNEL, OUTBOX_LOCK_CLASS, query

from .sender import Sender
from .sent_ids import SentMarks
from .session import BATCH, Shared
from .statements import PAUSE, TTL, PendingTopic, open_outbox
from .status import Board, topic_statuses
from .topic_facts import TopicFacts

__all__ = ["OutboxRelay"]

log = structlog.get_logger("compactory.outbox")

_RENEW_EVERY = 2.0  # seconds
_SAMPLE_EVERY = 5.0  # seconds; for metrics
_MISSING_EVERY = 1.0  # seconds between attempts of topics that Kafka did not have
_WHOLE_EVERY = 60.0  # seconds between reads of the whole table, for messages that compactory.publish did not write
_LONGEST_ROUND = 0.5  # seconds
_SHORTEST_ROUND = 0.002  # seconds
_IDLE_STOP = 2.0  # seconds that stop() waits for threads without topics
_MAX_BATCH = 100_000  # messages
_DUE_BATCH = 1000  # scheduled messages of a transaction
_SHORTEST_DUE = 0.02  # seconds between two reads of scheduled messages
_BUSY = 100  # messages of a batch from which on writers need not notify


class OutboxRelay:
    """Sends the messages of an outbox to Kafka with ``threads`` senders. Thread-safe.

    ``postgres`` is a URL or DSN, ``kafka`` bootstrap servers or librdkafka's properties. ``topics``: send only these;
    default: all. ``batch``: the most messages of a transaction; of one topic at most 30,000. Any
    number of relays may run side by side. Raises ConfigError.
    """

    def __init__(
        self,
        postgres: str | Connection,
        kafka: str | Mapping[str, Any] | Kafka,
        threads: int = 2,
        *,
        topics: Iterable[str] = (),
        batch: int = BATCH,
    ) -> None:
        problems = [f"{name} must be at least 1" for name, n in (("threads", threads), ("batch", batch)) if n < 1]
        if batch > _MAX_BATCH:
            problems.append(f"batch must be at most {_MAX_BATCH:,}: the ids of a batch are one record")
        if problems:
            raise ConfigError(problems)
        self._postgres = checked_url(postgres) if isinstance(postgres, str) else postgres
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._only = frozenset(topics)
        self.board = Board()
        self._missing = Interval(_MISSING_EVERY, at_once=True)
        self._lock = threading.Lock()  # guards the next two
        self._assigned: dict[str, PendingTopic] = {}  # in the queue, or with a sender
        self._is_busy = False  # a sender has sent a large batch
        self._wakeup: Wakeup | None = None
        facts = TopicFacts(self._kafka, self._assigned_topics)
        self._shared = Shared(
            self._postgres.conninfo, self._kafka, threads, batch, self.board, self._topic_finished, facts
        )
        self._senders = [
            threading.Thread(target=Sender(self._shared, number).run, name=f"compactory-outbox-{number}", daemon=True)
            for number in range(1, threads + 1)
        ]
        self._keeper = threading.Thread(target=self._keep, name="compactory-outbox", daemon=True)
        self._drain_to: int | None = None  # the newest id to be sent before the relay ends
        self._finished = threading.Event()
        self._failure: CompactoryError | None = None

    def start(self) -> None:
        """Check Postgres and Kafka, then send in the background. Waits there for servers. Raises ConfigError."""
        try:
            self._check()
        except Unreachable as error:
            self.board.note(detail=str(error))
            log.warning("the outbox is not sent yet", error=" ".join(str(error).split()))
        for thread in [*self._senders, self._keeper]:
            thread.start()

    def stop(self, timeout: float = 15.0) -> bool:
        """Finish current batches and release the locks. Return True if that ended within ``timeout`` seconds.

        Another relay takes over the locks that are left. A thread that is still connecting ends later. Idempotent.
        """
        self._shared.stop.set()
        for _ in self._senders:
            self._shared.work.put(None)
        self._wake_senders()
        begun_at = time.monotonic()
        while alive := [thread for thread in self._senders if thread.is_alive()]:
            if time.monotonic() > begun_at + (timeout if self.board.holders else min(timeout, _IDLE_STOP)):
                break
            alive[0].join(0.02)
        self._finished.set()
        self._wake_keeper()
        if self._keeper.ident is not None:
            self._keeper.join(_IDLE_STOP)
        return not self.board.holders

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """True until a thread of the relay has ended, also while it waits for a server."""
        return all(thread.ident is None or thread.is_alive() for thread in [*self._senders, self._keeper])

    def drain(self, stop: threading.Event) -> bool:
        """Wait until every message that is committed now is sent. Return False if ``stop`` was set before.

        Raises CompactoryError if a message can't be sent, Unreachable if Postgres or Kafka is away at the call.
        """
        if stop.is_set():  # during the wait for Kafka at the start
            return False
        self._drain_to = self._check()
        self._shared.ending.set()
        self._wake_senders()
        self._wake_keeper()
        while not self._finished.is_set() and not stop.is_set():
            self._finished.wait(0.1)
        if self._failure is not None:
            raise self._failure
        return self._finished.is_set()

    def _check(self) -> int:
        """Check Postgres and Kafka, publish messages that are due; return the newest id of a message.

        Raises ConfigError, Unreachable.
        """
        with self._opened("start") as (connection, identity):
            SentMarks(self._kafka, identity).ensure()
            while not _publish_due(connection):
                pass
            row = connection.execute(query("outbox/newest")).fetchone()
            return row[0] if row is not None else 0

    @contextmanager
    def _opened(self, purpose: str) -> Iterator[tuple[WatchedConnection, str]]:
        with postgres_errors(self._postgres):
            connection, identity = open_outbox(self._postgres.conninfo, purpose)
            with closing(connection):
                yield connection, identity

    def _keep(self) -> None:
        backoff = Backoff()
        while not self._finished.is_set():
            try:
                with self._opened("keeper") as (connection, _):
                    wakeup = Wakeup(connection, OUTBOX_CHANNEL, (OUTBOX_LOCK_CLASS, 0))
                    with closing(wakeup):
                        self._wakeup = wakeup
                        self._rounds(connection, wakeup, Pauses(connection, "outbox"), backoff)
            except CompactoryError as error:
                self.board.note(detail=str(error))
                log.warning("the keeper waits for Postgres", error=" ".join(str(error).split()))
                self._finished.wait(backoff.pause())
            finally:
                self._wakeup = None

    def _rounds(self, connection: WatchedConnection, wakeup: Wakeup, pauses: Pauses, backoff: Backoff) -> None:
        renewal = Interval(_RENEW_EVERY, at_once=True)
        sample = Interval(_SAMPLE_EVERY, at_once=True)
        whole_read = Interval(_WHOLE_EVERY, at_once=True)
        due_at, pause = 0.0, _SHORTEST_ROUND
        while not self._finished.is_set():
            self._obey_pauses(pauses)
            if renewal.is_over():
                connection.execute(query("outbox/renew"), {"holders": self.board.holders})
            if sample.is_over():
                self.board.note(topics=[asdict(topic) for topic in topic_statuses(connection)])
            if time.monotonic() >= due_at:
                due_at = time.monotonic() + _publish_due(connection)
            has_work = self._assign_topics(connection, whole=whole_read.is_over())
            backoff.reset()
            with self._lock:
                is_busy, self._is_busy = self._is_busy, False
            if is_busy:
                wakeup.wake()
            if has_work:
                pause = _SHORTEST_ROUND
            elif not wakeup.asleep and not is_busy and wakeup.sleep():
                continue  # read once more: writers that committed before the lock did not notify
            until_due = max(0.0, due_at - time.monotonic())
            if wakeup.wait(min(_LONGEST_ROUND if wakeup.asleep else pause, until_due)):
                self._wake_senders()  # most often a sender has the topic
            pause = min(_LONGEST_ROUND, pause * 2)

    def _obey_pauses(self, pauses: Pauses) -> None:
        if pauses.have_changed():
            self._shared.paused = pauses.of("outbox")
            self.board.note(paused=pauses.fields())
            self._wake_senders()

    def _assign_topics(self, connection: WatchedConnection, *, whole: bool) -> bool:
        """Put topics with messages into the queue. Return True if there were any, or a sender has got more messages."""
        try_missing = self._missing.is_over()
        parameters = {"whole": whole, "pause": timedelta(seconds=PAUSE), "ttl": timedelta(seconds=TTL)}
        rows = connection.execute(query("outbox/pending"), parameters).fetchall()
        rows = [row for row in rows if not self._only or row[0] in self._only]
        has_news = has_assigned = False
        for topic, first, _age, lapsed, free, alone, missing in sorted(rows, key=lambda row: -row[2]):
            if topic in self._shared.paused:
                continue
            with self._lock:
                if (assigned := self._assigned.get(topic)) is not None:
                    has_news |= not assigned.has_news.is_set()
                    assigned.has_news.set()
                    continue
                if self._shared.stop.is_set() or not (free or (missing and try_missing)):
                    continue
                self._assigned[topic] = pending = PendingTopic(
                    topic, lapsed, alone=alone, missing=missing, first=first if whole else None
                )
            self._shared.work.put(pending)
            has_assigned |= free
        if has_assigned:
            self._wake_senders()  # once: the first sender takes many topics together
        if self._drain_to is not None:
            self._finish_if_drained(connection, [row for row in rows if row[1] <= self._drain_to])
        return has_news or has_assigned

    def _finish_if_drained(self, connection: WatchedConnection, rows: list[Any]) -> None:
        with self._lock:
            if self._assigned:
                return
        if not rows:
            self._finished.set()
            return
        paused, topics = self._shared.paused, {row[0] for row in rows}
        remedy = f"a topic is tried again as soon as Kafka has it, {PAUSE:g} s after any other error"
        reasons = [
            f"topic {item.topic!r}: {item.last_error}; {remedy}"
            for item in topic_statuses(connection)
            if item.error and item.topic in topics - paused
        ]
        reasons += [f"topic {topic!r} is paused: compactory outbox resume {topic}" for topic in sorted(topics & paused)]
        if len(reasons) == len(rows):
            self._failure = CompactoryError(f"not everything was sent: {'; '.join(reasons)}")
            self._finished.set()

    def _topic_finished(self, topic: str, sent: int) -> None:
        with self._lock:
            self._assigned.pop(topic, None)
            self._is_busy |= sent >= _BUSY
        self._wake_keeper()

    def _assigned_topics(self) -> list[str]:
        with self._lock:
            return list(self._assigned)

    def _wake_senders(self) -> None:
        """Wake the senders that wait for more messages of a topic."""
        with self._lock:
            for topic in self._assigned.values():
                topic.has_news.set()

    def _wake_keeper(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.poke()


def _publish_due(connection: WatchedConnection) -> float:
    """Publish scheduled messages that are due; return the seconds until the next call, 0 if more are due."""
    row = connection.execute(query("outbox/publish_due"), {"limit": _DUE_BATCH}).fetchone()
    published, next_due = row if row is not None else (0, None)
    if published == _DUE_BATCH:
        return 0.0
    return _LONGEST_ROUND if next_due is None else min(max(next_due, _SHORTEST_DUE), _LONGEST_ROUND)
