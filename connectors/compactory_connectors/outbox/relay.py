"""The relay: a keeper that finds topics with messages and renews locks, and threads that send.

A topic's lock is taken by the thread that sends it, in `sender`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Self

import structlog

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.backoff import Backoff
from compactory_connectors.postgres.jdbc_url import Connection, checked_url
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.wakeup import Wakeup
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import OUTBOX_CHANNEL, OUTBOX_LOCK_CLASS, query

from .rules import TopicRules
from .sender import BATCH, Sender, Shared
from .sent_ids import SentMarks
from .statements import PAUSE, TTL, Pending, open_outbox
from .status import Board, topic_statuses
from .topic_facts import TopicFacts

__all__ = ["OutboxRelay"]

log = structlog.get_logger("compactory.outbox")

_BEAT = 2.0  # seconds between heartbeats of batches that take long
_SAMPLE = 5.0  # seconds between samples for metrics
_MISSING = 1.0  # seconds between looks at topics that Kafka did not have
_WHOLE = 60.0  # seconds between looks at everything, for messages that were written past compactory.publish
_IDLE = 0.5  # seconds between rounds
_SHORTEST = 0.002  # seconds until another attempt to fall asleep
_CONNECTING = 2.0  # seconds to end in, for threads that hold nothing
_MOST = 100_000  # messages in a batch
_BUSY = 100  # messages at once, from which on writers need not notify


class OutboxRelay:
    """Sends what was published in a database to Kafka, by ``threads`` topics at a time. Thread-safe.

    ``postgres`` is a URL or DSN, ``kafka`` bootstrap servers or librdkafka's properties, ``topics`` the only ones to
    send (all by default), ``rules`` are those of single topics, ``batch`` is the most messages in a transaction (of one
    topic 30,000).
    Any number of relays may run beside each other. Raises ConfigError for what is set wrongly.
    """

    def __init__(
        self,
        postgres: str | Connection,
        kafka: str | Mapping[str, Any] | Kafka,
        threads: int = 2,
        *,
        topics: Iterable[str] = (),
        rules: Mapping[str, TopicRules] | None = None,
        batch: int = BATCH,
    ) -> None:
        problems = [f"{name} must be at least 1" for name, n in (("threads", threads), ("batch", batch)) if n < 1]
        if batch > _MOST:
            problems.append(f"batch must be at most {_MOST:,}: the ids of a batch are one record")
        if problems:
            raise ConfigError(problems)
        self._postgres = checked_url(postgres) if isinstance(postgres, str) else postgres
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._only = frozenset(topics)
        self.board = Board()
        self._stop = threading.Event()
        self._work: SimpleQueue[Pending | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the next three
        self._given: dict[str, Pending] = {}  # topics that are in the queue or with a sender
        self._large = False  # a sender sent many messages at once
        self._missing_at = 0.0  # time.monotonic() of the next look at topics that Kafka did not have
        self._wakeup: Wakeup | None = None
        self._shared = Shared(
            self._postgres.conninfo,
            self._kafka,
            rules or {},
            threads,
            batch,
            self.board,
            self._stop,
            self._work,
            self._done,
            TopicFacts(self._kafka, self._waiting),
        )
        senders = [Sender(self._shared, number) for number in range(1, threads + 1)]
        self._senders = [
            threading.Thread(target=sender.run, name=f"compactory-outbox-{number}", daemon=True)
            for number, sender in enumerate(senders, 1)
        ]
        self._keeper = threading.Thread(target=self._keep, name="compactory-outbox", daemon=True)
        self._until: int | None = None  # the newest id of those that have to be sent before it ends by itself
        self._finished = threading.Event()
        self._failure: CompactoryError | None = None

    def start(self) -> None:
        """Check database and Kafka, then send in the background; one that is away is waited for. Raises ConfigError."""
        try:
            self._check()
        except Unreachable as error:
            self.board.failed(str(error))
            log.warning("the outbox is not sent yet", error=" ".join(str(error).split()))
        for thread in [*self._senders, self._keeper]:
            thread.start()

    def stop(self, timeout: float = 15.0) -> bool:
        """Finish the batches under way, give every lock back; whether all of that ended within ``timeout`` seconds.

        What did not is taken over by another relay. A thread that is still connecting has nothing to finish, and ends
        later. Idempotent.
        """
        self._stop.set()
        for _ in self._senders:
            self._work.put(None)
        self._wake_senders()
        began = time.monotonic()
        while alive := [thread for thread in self._senders if thread.is_alive()]:
            if time.monotonic() > began + (timeout if self.board.holders else min(timeout, _CONNECTING)):
                break
            alive[0].join(0.02)
        self._finished.set()
        self._poke()
        if self._keeper.ident is not None:
            self._keeper.join(_CONNECTING)
        return not self.board.holders

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether none of its threads has ended: one that still looks for Kafka at its start is alive."""
        return all(thread.ident is None or thread.is_alive() for thread in [*self._senders, self._keeper])

    def drain(self, stop: threading.Event) -> bool:
        """Wait until everything is sent that is committed by now; False where it was stopped before.

        Raises CompactoryError where something can't be sent, Unreachable where database or Kafka is away at the call.
        """
        if stop.is_set():  # while it waited for Kafka at its start
            return False
        self._until = self._check()
        self._shared.ending.set()
        self._wake_senders()
        self._poke()
        while not self._finished.is_set() and not stop.is_set():
            self._finished.wait(0.1)
        if self._failure is not None:
            raise self._failure
        return self._finished.is_set()

    def _check(self) -> int:
        """The newest id that was given to a message. Raises ConfigError, Unreachable."""
        with self._opened("start") as (connection, identity):
            SentMarks(self._kafka, identity).ensure()
            row = connection.execute(query("outbox/newest")).fetchone()
            return row[0] if row is not None else 0

    @contextmanager
    def _opened(self, purpose: str) -> Iterator[tuple[WatchedConnection, str]]:
        with postgres_errors(self._postgres):
            connection, identity = open_outbox(self._postgres.conninfo, purpose)
            with closing(connection):
                yield connection, identity

    def _keep(self) -> None:
        """Look for work until every sender has ended."""
        backoff = Backoff()
        while not self._finished.is_set():
            try:
                with self._opened("keeper") as (connection, _):
                    keeper = Wakeup(connection, OUTBOX_CHANNEL, (OUTBOX_LOCK_CLASS, 0))
                    with closing(keeper):
                        self._wakeup = keeper
                        self._rounds(connection, keeper, backoff)
            except CompactoryError as error:
                self.board.failed(str(error))
                log.warning("topics with messages are not looked for", error=" ".join(str(error).split()))
                self._finished.wait(backoff.pause())
            finally:
                self._wakeup = None

    def _rounds(self, connection: WatchedConnection, wakeup: Wakeup, backoff: Backoff) -> None:
        beat = sample = whole = 0.0
        pause = _SHORTEST
        while not self._finished.is_set():
            now = time.monotonic()
            if now >= beat:
                connection.execute(query("outbox/renew"), {"holders": self.board.holders})
                beat = now + _BEAT
            if now >= sample:
                self.board.sampled(topic_statuses(connection))
                sample = now + _SAMPLE
            found = self._hand_out(connection, whole=now >= whole)
            backoff.reset()
            whole = now + _WHOLE if now >= whole else whole
            with self._lock:
                large, self._large = self._large, False
            if large:
                wakeup.wake()
            if found:
                pause = _SHORTEST
            elif not wakeup.asleep and not large and wakeup.sleep():
                continue  # and look once more: who committed before did not notify
            if wakeup.wait(_IDLE if wakeup.asleep else pause):
                self._wake_senders()  # most often it is for a topic that one of them holds
            pause = min(_IDLE, pause * 2)

    def _hand_out(self, connection: WatchedConnection, *, whole: bool) -> bool:
        """Give topics with messages to the senders. Return True if there were any."""
        now = time.monotonic()
        looks = now >= self._missing_at
        self._missing_at = now + _MISSING if looks else self._missing_at
        asked = {"whole": whole, "pause": timedelta(seconds=PAUSE), "ttl": timedelta(seconds=TTL)}
        rows = connection.execute(query("outbox/pending"), asked).fetchall()
        rows = [row for row in rows if not self._only or row[0] in self._only]
        found = handed = False
        for topic, first, _age, lapsed, free, alone, missing in sorted(rows, key=lambda row: -row[2]):
            with self._lock:
                given = self._given.get(topic)
                if given is not None:
                    found |= not given.seen.is_set()
                    given.seen.set()
                if not (free or (missing and looks)) or given is not None or self._stop.is_set():
                    continue
                self._given[topic] = pending = Pending(
                    topic, lapsed, alone=alone, missing=missing, first=first if whole else None
                )
            self._work.put(pending)
            handed |= free
        if handed:
            self._wake_senders()  # once: the first sender to wake up takes many topics together
        if self._until is not None:
            self._see_whether_done(connection, [row for row in rows if row[1] <= self._until])
        return found or handed

    def _see_whether_done(self, connection: WatchedConnection, rows: list[Any]) -> None:
        with self._lock:
            idle = not self._given
        if not idle:
            return
        if not rows:
            self._finished.set()
            return
        stuck = [item for item in topic_statuses(connection) if item.error and item.topic in {row[0] for row in rows}]
        if stuck and len(stuck) == len(rows):
            reasons = [f"topic {item.topic!r}: {item.last_error}" for item in stuck]
            again = f"a topic is tried again as soon as Kafka has it, {PAUSE:g} s after any other error"
            self._failure = CompactoryError(f"not everything was sent: {'; '.join(reasons)}; {again}")
            self._finished.set()

    def _done(self, topic: str, sent: int) -> None:
        with self._lock:
            self._given.pop(topic, None)
            self._large |= sent >= _BUSY
        self._poke()

    def _waiting(self) -> list[str]:
        with self._lock:
            return list(self._given)

    def _wake_senders(self) -> None:
        """Have those look up that wait for more messages of their topics."""
        with self._lock:
            for given in self._given.values():
                given.seen.set()

    def _poke(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.poke()
