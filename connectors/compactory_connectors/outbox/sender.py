"""A thread of a relay: takes the lock of a topic, sends its batches, gives the lock back.

A batch is read, sent in one Kafka transaction together with its ids, and deleted by exact id with the next read. The
transactional id is the holder's, whose name is in the lock: whoever takes over a lock that was not renewed fences that
id first, and then deletes what the last committed transaction held. So a holder that lost its lock can't send, and
what it sent is not sent again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, Final
from uuid import uuid4

import psycopg
import structlog

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka, KafkaError
from compactory_connectors.database.backoff import Backoff
from compactory_connectors.source.publish.partitioner import partition_of
from compactory_connectors.source.publish.publisher import Publisher, TopicRefused

from .message import MESSAGE_ID, headers_of
from .rules import TopicRules
from .sent_ids import MARKS_TOPIC, SentIds, SentMarks
from .status import Board
from .table import Batch, Claim, OutboxTable, Pending, Row, open_outbox

__all__ = ["BATCH", "Sender", "Shared", "TopicFacts", "newest_of_keys"]

log = structlog.get_logger("compactory.outbox")

BATCH: Final = 10_000  # messages
_SLICE = 500  # messages after which the next batch is received as far as it is there
_BYTES = 16 << 20  # of payloads in a batch; a larger message is a batch of its own
_LARGEST = 100_000_000  # bytes of a message; the broker has limits of its own
_SHARE = 1.0  # seconds that a topic may be sent while others wait
_KEEP = 0.5  # seconds that a lock is kept for more messages
_FACTS_AGE = 60.0  # seconds

_POISON = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG,
    KafkaError.INVALID_TIMESTAMP, KafkaError.POLICY_VIOLATION,
})  # fmt: skip
"""What is wrong with a message and not with its topic."""


class _TopicFailed(Exception):
    """Nothing can be sent to the topic for now; nothing of it is open."""


class TopicFacts:
    """What the broker says of topics, kept for a minute. Owned by one thread.

    ``waiting`` are topics that are asked about along with one, as a request for each takes longer than a small batch.
    """

    def __init__(self, kafka: Kafka, waiting: Callable[[], Iterable[str]]) -> None:
        self._kafka = kafka
        self._waiting = waiting
        self._asked: dict[str, float] = {}
        self._partitions: dict[str, int] = {}

    def look(self, topic: str, tell_limits: Callable[[Mapping[str, int]], None]) -> int:
        """The number of partitions. Raises _TopicFailed where there is no such topic, ConfigError, Unreachable."""
        if time.monotonic() - self._asked.get(topic, -_FACTS_AGE) >= _FACTS_AGE:
            try:
                self._ask({topic, *self._waiting()}, tell_limits)
            except ConfigError:  # about any of them
                self._ask({topic}, tell_limits)
        if topic not in self._partitions:
            raise _TopicFailed(f"topic {topic!r} does not exist on Kafka at {self._kafka.bootstrap}: create it")
        return self._partitions[topic]

    def _ask(self, topics: set[str], tell_limits: Callable[[Mapping[str, int]], None]) -> None:
        found = self._kafka.topics(topics)
        for topic in topics - found.keys():
            self._partitions.pop(topic, None)
            self._asked.pop(topic, None)
        try:
            configs = self._kafka.topic_configs(found) if found else {}
        except ConfigError:
            configs = {}  # needs DescribeConfigs, which a relay can do without
        sizes = {topic: config.get("max.message.bytes") for topic, config in configs.items()}
        tell_limits({topic: int(size) for topic, size in sizes.items() if size is not None})
        self._partitions |= {name: len(facts.partitions) for name, facts in found.items()}
        self._asked |= dict.fromkeys(found, time.monotonic())


@dataclass(slots=True)
class Shared:
    """What the threads of a relay have in common. ``done`` tells the keeper that a sender is.

    ``waiting``: the topics that are in the queue or with a sender. ``ending``: it ends once everything is sent.
    """

    conninfo: Mapping[str, Any]
    kafka: Kafka
    rules: Mapping[str, TopicRules]
    batch: int
    board: Board
    stop: threading.Event
    work: SimpleQueue[Pending | None]
    done: Callable[[str, int], None]
    waiting: Callable[[], Iterable[str]]
    ending: threading.Event = field(default_factory=threading.Event)


class Sender:
    """Owned by the thread that runs it."""

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._number = number
        self._lost: Pending | None = None
        self._done: Sequence[int] = ()  # messages of the topic in hand that Kafka has, and that are not deleted yet
        self._limits: dict[str, int] = {}  # topic → messages in a batch, below the usual while one is refused

    def run(self) -> None:
        """Work until the relay stops; an outage is waited for."""
        backoff = Backoff()
        while not self._shared.stop.is_set():
            try:
                with self._session():
                    backoff.reset()
                    self._work()
            except (psycopg.Error, CompactoryError) as error:
                self._shared.board.failed(str(error))
                log.warning("the outbox is not sent", thread=self._number, error=" ".join(str(error).split()))
                self._shared.stop.wait(backoff.pause())

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Connect under a name that nobody has used; a topic that was held is taken over from the name before."""
        self._holder = f"{socket.gethostname()[:24]}-{os.getpid()}-{self._number}-{uuid4().hex[:8]}"
        connection, identity = open_outbox(self._shared.conninfo, self._holder)
        with closing(connection), closing(self._producer(self._holder)) as self._publisher:
            self._publisher.open()
            self._table = OutboxTable(connection, self._holder)
            self._marks = SentMarks(self._shared.kafka, identity)
            self._marks.ensure()
            self._facts = TopicFacts(self._shared.kafka, self._shared.waiting)
            with self._shared.board.holding(self._holder):
                yield

    def _work(self) -> None:
        if self._lost is not None:
            self._serve(self._lost)
            self._lost = None
        while (pending := self._shared.work.get()) is not None and not self._shared.stop.is_set():
            sent = 0
            try:
                sent = self._serve(pending)
            finally:
                self._shared.done(pending.topic, sent)

    def _serve(self, pending: Pending) -> int:
        """Take a topic's lock where it is to be had, and send; how many messages."""
        last = self._fence(pending.lapsed, pending.topic) if pending.lapsed is not None else None
        claim = self._table.claim(pending, last)
        if claim is None:
            return 0
        self._lost = Pending(pending.topic, self._holder, own=True)
        if pending.lapsed is not None:
            log.info("topic taken over", topic=pending.topic, holder=pending.lapsed)
        with self._shared.board.sending(pending.topic):
            try:
                sent = self._drain(claim, pending)
            except (_TopicFailed, TopicRefused) as error:
                sent = 0
                self._shared.board.retried(pending.topic)
                log.warning("topic is left alone for a minute", topic=pending.topic, error=str(error))
                self._table.fail(pending.topic, str(error), self._done)
        self._lost = None
        return sent

    def _drain(self, claim: Claim, pending: Pending) -> int:
        """Send batches until no more come; how many messages the largest had. Full ones overlap with the next read."""
        began = time.monotonic()
        self._done = ()
        batch: Batch | None = None
        largest = 0
        while True:
            usual = self._shared.batch
            limit = self._limits.get(claim.topic, usual)
            pending.seen.clear()
            if batch is None or self._is_early(batch):
                batch, self._done = self._table.read(claim, self._done, limit, _BYTES), ()
            if batch.moved is not None:
                claim, batch = batch.moved, None
                continue
            if batch.waiting:
                self._table.hold_back(claim.topic, batch.waiting)
                batch = None
                continue
            rows, more = batch.rows, batch.full
            behind = self._behind(claim, batch, rows[-1][0] if more and rows else None)
            tired = time.monotonic() - began > _SHARE and not self._shared.work.empty()
            goes_on = not tired if more else self._waits(pending, empty=not rows)
            if rows:
                sent = SentIds([row[0] for row in rows], batch.created)
                ahead = behind if more and goes_on and limit == usual else None
                try:
                    batch = self._send(claim, rows, sent, ahead)
                except TopicRefused as error:
                    self._shrink(claim.topic, rows, error)
                    batch = None
                    continue
                self._limits.pop(claim.topic, None)
                if limit < usual:
                    self._limits[claim.topic] = min(usual, limit * 4)
                self._done = sent.ids
                largest = max(largest, len(rows))
            else:
                batch = None
            claim = behind
            if not goes_on or self._shared.stop.is_set():
                self._table.release(claim, self._done)
                return largest

    def _is_early(self, batch: Batch) -> bool:
        """Whether a batch was read too early: it is empty, or has messages that were being sent then."""
        return bool(self._done) and (not batch.rows or batch.rows[0][0] <= self._done[-1])

    def _waits(self, pending: Pending, *, empty: bool) -> bool:
        """Whether to read once more with the lock kept, as messages often follow one another."""
        shared = self._shared
        if pending.own or shared.ending.is_set() or shared.stop.is_set() or not shared.work.empty():
            return False
        return not empty or (pending.seen.wait(_KEEP) and not shared.stop.is_set() and shared.work.empty())

    def _behind(self, claim: Claim, batch: Batch, last: int | None) -> Claim:
        """The claim after a batch was sent, as far as ``last`` where there is more."""
        return replace(claim, position=claim.position.after(batch.running, batch.newest, last))

    def _send(self, claim: Claim, rows: Sequence[Row], sent: SentIds, ahead: Claim | None) -> Batch | None:
        """Send messages in one transaction; return the next batch where it is to be read ``ahead``.

        What was sent before is deleted for good before the ids of this transaction replace those of the last. Raises
        TopicRefused.
        """
        topic = claim.topic
        partitions = self._look(topic)
        kept = newest_of_keys(rows) if self._rules(topic).compact else rows
        batch: Batch | None = None

        def produce(producer: Any) -> None:
            nonlocal batch
            self._marks.mark(producer, self._holder, topic, sent)
            for start in range(0, len(kept), _SLICE):
                _produce(producer, topic, kept[start : start + _SLICE], partitions)
                self._table.receive()
            batch = finish()

        with self._table.sending(claim, self._done, ahead, self._shared.batch, _BYTES) as finish:
            self._publisher.transact(produce)
        self._shared.board.sent(topic, len(kept))
        return batch

    def _look(self, topic: str) -> int:
        """The topic's partitions. Raises _TopicFailed, Unreachable."""
        try:
            return self._facts.look(topic, self._table.tell_limits)
        except ConfigError as error:
            raise _TopicFailed(str(error)) from error

    def _shrink(self, topic: str, rows: Sequence[Row], error: TopicRefused) -> None:
        """Find the message that is refused: send fewer, until it is alone. Raises the error where it is the topic's."""
        if error.code not in _POISON:
            raise error
        if len(rows) > 1:
            self._limits[topic] = max(1, len(rows) // 8)
            return
        holds = self._rules(topic).on_failure == "wait"
        self._table.set_aside(topic, rows[0][0], str(error), holds=holds)
        self._shared.board.set_aside(topic)
        log.error("message set aside", topic=topic, id=rows[0][0], error=str(error))

    def _fence(self, holder: str, topic: str) -> SentIds | None:
        """Make sure that a holder that did not renew its lock can't send any more; what it sent last.

        A frozen one may have locks on rows in Postgres: its session ends as well.
        """
        with closing(self._producer(holder)) as publisher:
            publisher.open()
        self._table.end_session(holder)
        return self._marks.last(holder, topic)

    def _producer(self, holder: str) -> Publisher:
        # a wake-up for each message doubles what producing costs; a commit does not wait for the linger time
        own = {"message.max.bytes": _LARGEST, "linger.ms": 5}
        return Publisher(self._shared.kafka, f"outbox-{holder}", MARKS_TOPIC, overrides=own)

    def _rules(self, topic: str) -> TopicRules:
        return self._shared.rules.get(topic, TopicRules())


def _produce(producer: Any, topic: str, rows: Sequence[Row], partitions: int) -> None:
    put = producer.produce
    for number, key, payload, more in rows:
        headers: list[Any] = [(MESSAGE_ID, b"%d" % number)]
        if more is None:
            put(topic, payload, key, headers=headers)
            continue
        partition_key, given, _ = more
        place = -1 if partition_key is None else partition_of(partition_key.encode(), partitions)
        put(topic, payload, key, place, headers=headers + headers_of(given))


def newest_of_keys(rows: Sequence[Row]) -> list[Row]:
    """Messages without those that a later one with the same key supersedes. Pure."""
    newest = {key: number for number, key, _, _ in rows}
    return [row for row in rows if row[1] is None or newest[row[1]] == row[0]]
