"""A sender's session: a connection, a producer, and the topics whose locks it holds.

Batches of several topics are read, sent in one Kafka transaction together with their ids, and deleted by exact id with
the next read: the rows of many topics lie side by side, and each read, delete and transaction costs a round trip.

A locked topic goes through these states until it has no more messages:

    READ → SEND → READ …           its batch is sent; the next one is read at the same time if the batch is full
    READ → WAIT → READ or RELEASE  a single topic without messages keeps its lock for half a second more
    SEND → RELEASE                 no more messages, or other topics wait
    READ → RELEASE                 an operator has paused the topic
    SEND → NARROW → READ           Kafka refuses a message: topics are sent one by one, then fewer messages, until it
                                   is alone and set aside
    any → FAIL                     the topic has an error: its lock is released, and it pauses
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event
from typing import Any, Final

import structlog

from compactory.errors import CompactoryError, ConfigError
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Kafka, KafkaError
from compactory_connectors.kafka.partitioner import partition_by
from compactory_connectors.kafka.publisher import EndInDoubt, Publisher, TopicRefused

from .message import MESSAGE_ID, headers_of
from .sent_ids import SentIds, SentMarks
from .statements import PAUSE, UNREAD, Batch, Claim, LockedTopic, OutboxTable, PendingTopic, Row
from .status import Board
from .topic_facts import TopicFacts, TopicFailed

__all__ = ["BATCH", "SenderMemory", "SenderSession", "Shared"]

log = structlog.get_logger("compactory.outbox")

BATCH: Final = 60_000
"""Messages of a transaction."""
_TOPIC_BATCH = 30_000  # messages of one topic: a larger batch is hardly faster, and other topics wait longer
_SLICE = 500  # messages after which the next batch is received as far as it is there
_BATCH_BYTES = 16 << 20  # of payloads; a larger message is a batch of its own
_SHARE = 1.0  # seconds that a topic may be sent while others wait
_QUICK = 2.0  # seconds of a transaction below which smaller batches grow again
_KEEP = 0.5  # seconds that a lock is kept for more messages

_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_POISON = _TOO_LARGE | frozenset({
    KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG,
    KafkaError.INVALID_TIMESTAMP, KafkaError.POLICY_VIOLATION,
})  # fmt: skip
"""Errors of a message and not of its topic."""

_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001


@dataclass(slots=True)
class Shared:
    """The objects that the threads of a relay share.

    ``busy``: the numbers of the senders that have topics. ``ending``: the relay ends once everything is sent.
    ``paused``: topics that an operator has paused; the keeper replaces the set.
    ``finished`` is called with a topic and the size of its largest batch, once the sender has released the topic.
    """

    conninfo: Mapping[str, Any]
    kafka: Kafka
    threads: int
    batch: int
    board: Board
    finished: Callable[[str, int], None]
    facts: TopicFacts
    stop: Event = field(default_factory=Event)
    work: SimpleQueue[PendingTopic | None] = field(default_factory=SimpleQueue)
    busy: set[int] = field(default_factory=set)
    paused: frozenset[str] = frozenset()
    ending: Event = field(default_factory=Event)


@dataclass(slots=True)
class SenderMemory:
    """The state of a sender that outlives a session.

    ``reserved``: topics that the keeper gives to no other sender. ``to_recover``: topics whose lock is held; the next
    session takes them over, ``one_by_one`` if one of them caused the error. ``limits``: the messages of a batch, for
    topics with smaller batches than usual.
    """

    reserved: set[str] = field(default_factory=set)
    to_recover: dict[str, PendingTopic] = field(default_factory=dict)
    one_by_one: bool = False
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SenderSession:
    """Sends the batches of locked topics. Owned by the sender's thread."""

    shared: Shared
    memory: SenderMemory
    holder: str
    table: OutboxTable
    publisher: Publisher
    marks: SentMarks

    def claim(self, pending: Sequence[PendingTopic], last_sent: Mapping[str, SentIds]) -> list[LockedTopic]:
        """Lock topics, all of one lapsed holder or of none; return the locked ones.

        ``last_sent`` has the ids of the holder's last transaction by topic.
        """
        by_name = {topic.name: topic for topic in pending}
        locked = [LockedTopic(by_name[claim.topic], claim) for claim in self.table.claim(pending, last_sent)]
        not_claimed = {name: topic for name, topic in self.memory.to_recover.items() if name not in by_name}
        claimed = {topic.name: PendingTopic(topic.name, self.holder, own=True) for topic in locked}
        self.memory.to_recover = not_claimed | claimed
        self.shared.board.sends(self.holder, self.memory.to_recover)
        if locked and pending[0].lapsed is not None:
            log.info("topics taken over", topics=[topic.name for topic in locked], holder=pending[0].lapsed)
        return locked

    def give_back(self, topic: str, sent: int = 0) -> None:
        """Return a topic to the keeper, which may give it to any sender."""
        if topic in self.memory.reserved:
            self.memory.reserved.discard(topic)
            self.shared.finished(topic, sent)

    def drain(self, locked: list[LockedTopic], *, may_keep: bool = True) -> None:
        """Send batches until the topics have no more messages, and release the locks.

        ``may_keep``: the lock of a single topic is kept for a while, because messages often follow each other.
        """
        begun_at = time.monotonic()
        while locked := self._ready(locked):
            has_time = time.monotonic() - begun_at <= _SHARE or (may_keep and self.shared.work.empty())
            kept_topic = self._kept(locked) if may_keep else None
            if kept_topic is not None and not kept_topic.batch.rows and not self._wait_for_news(kept_topic):
                kept_topic = None
            continuing = [topic for topic in locked if (has_time if topic.batch.full else topic is kept_topic)]
            next_claims = {topic.name: _next_claim(topic) for topic in locked}
            try:
                self._send(locked, [topic for topic in continuing if self._can_read_ahead(topic)], next_claims)
            except TopicRefused as error:
                locked = self._narrow(locked, error)
                continue
            except CompactoryError as error:
                if not isinstance(error, EndInDoubt):
                    self._shrink(locked)  # Kafka may be too slow for such a batch
                raise
            if self.shared.stop.is_set():
                continuing = []
            self._release([topic for topic in locked if topic not in continuing])
            locked = continuing

    def _ready(self, locked: Sequence[LockedTopic]) -> list[LockedTopic]:
        """Release paused topics and read the missing batches; return the topics that Kafka has."""
        paused = self.shared.paused
        self._release([topic for topic in locked if topic.name in paused])
        locked = [topic for topic in locked if topic.name not in paused]
        for topic in locked:
            topic.pending.has_news.clear()
            limit = min(self.shared.batch // len(locked) or 1, _TOPIC_BATCH)
            topic.limit = min(self.memory.limits.get(topic.name, limit), limit)
        while unread := [topic for topic in locked if topic.batch is UNREAD or topic.was_read_early]:
            for topic, batch in zip(unread, self.table.read(unread, _BATCH_BYTES // len(locked)), strict=True):
                topic.batch, topic.sent_ids = batch, ()
                if batch.moved is not None:
                    topic.claim, topic.batch = batch.moved, UNREAD
                elif batch.waiting:
                    self.table.hold_back(topic.name, batch.waiting)
                    topic.batch = UNREAD
        return [topic for topic in locked if not topic.batch.rows or self._exists(topic)]

    def _exists(self, topic: LockedTopic) -> bool:
        """Return True if Kafka has the topic, else fail the topic."""
        try:
            topic.partitions = self.shared.facts.partitions(topic.name, self.table.store_size_limits)
        except TopicFailed as error:
            remedy = f"or drop its messages: compactory outbox drop --topic {topic.name}"
            self._fail(topic, f"{error}, {remedy}", missing=True)
            return False
        except ConfigError as error:
            self._fail(topic, str(error))
            return False
        return True

    def _kept(self, locked: Sequence[LockedTopic]) -> LockedTopic | None:
        """Return the single topic whose lock is kept for more messages, unless another topic waits."""
        shared, topic = self.shared, locked[0]
        is_ending = shared.ending.is_set() or shared.stop.is_set()
        return None if len(locked) > 1 or topic.pending.own or is_ending or not shared.work.empty() else topic

    def _wait_for_news(self, topic: LockedTopic) -> bool:
        """Wait a while for messages of the topic; return True if there are any and no other topic waits."""
        shared = self.shared
        return topic.pending.has_news.wait(_KEEP) and not shared.stop.is_set() and shared.work.empty()

    def _can_read_ahead(self, topic: LockedTopic) -> bool:
        """Return True if the next batch may be read before this one is deleted.

        Not after the first read with running transactions: their first ids are unknown, and may be below this batch.
        """
        batch = topic.batch
        return batch.full and topic.name not in self.memory.limits and (topic.largest > 0 or not batch.running)

    def _send(
        self, locked: Sequence[LockedTopic], read_ahead: Sequence[LockedTopic], next_claims: Mapping[str, Claim]
    ) -> None:
        """Send batches in one transaction, read the next batches of ``read_ahead``, and move to the next claims.

        Messages that were sent before are deleted before the ids of this transaction replace those of the last one.
        Raises TopicRefused.
        """
        next_batches: dict[str, Batch] = {}
        sending = [topic for topic in locked if topic.batch.rows]
        sent = {topic.name: SentIds([row[0] for row in topic.batch.rows], topic.batch.created) for topic in sending}

        @collector_paused()  # rows come by the thousand, and have no cycles
        def produce(producer: Any) -> None:
            for name, ids in sent.items():
                self.marks.mark(producer, self.holder, name, ids)
            for topic in sending:  # the client then registers all partitions by one request
                _produce(producer, topic.name, topic.batch.rows[:1], self._partition_of(topic))
            for topic in sending:
                for start in range(1, len(topic.batch.rows), _SLICE):
                    rows = topic.batch.rows[start : start + _SLICE]
                    _produce(producer, topic.name, rows, self._partition_of(topic))
                    self.table.receive()
            next_batches.update(finish())

        begun_at = time.monotonic()
        if sending:
            next_reads = [replace(topic, claim=next_claims[topic.name]) for topic in read_ahead]
            with self.table.sending(sending, next_reads, _BATCH_BYTES // len(sending)) as finish:
                self.publisher.transact(produce)
        was_quick = time.monotonic() - begun_at < _QUICK
        for topic in sending:
            self.shared.board.count("sent", topic.name, len(topic.batch.rows))
            if was_quick:
                self._grow(topic.name)
            topic.sent_ids = sent[topic.name].ids
            topic.largest = max(topic.largest, len(topic.sent_ids))
        for topic in locked:
            topic.claim, topic.batch = next_claims[topic.name], next_batches.get(topic.name, UNREAD)

    def _narrow(self, locked: Sequence[LockedTopic], error: TopicRefused) -> list[LockedTopic]:
        """Find the message that is refused: send each topic by itself, then fewer messages, until it is alone.

        Return the topics to go on with. Raises the error if it needs another session.
        """
        self.memory.one_by_one = not self.publisher.usable
        continuing = self._narrow_topic(locked[0], error) if len(locked) == 1 else []
        if self.memory.one_by_one:
            raise error
        if len(locked) > 1:
            for topic in sorted(locked, key=lambda topic: len(topic.batch.rows)):
                topic.batch = UNREAD
                self.drain([topic], may_keep=False)
        return continuing

    def _narrow_topic(self, topic: LockedTopic, error: TopicRefused) -> list[LockedTopic]:
        """Fail the topic, or set its single message aside, or make the next batch smaller."""
        self._shrink([topic])
        rows, topic.batch = topic.batch.rows, UNREAD
        if error.code not in _POISON:
            self._fail(topic, str(error), missing=error.code in _UNKNOWN)
            return []
        if len(rows) == 1:
            self._set_aside(topic.name, rows[0][0], self._reason(topic.name, rows[0], error))
        return [topic]

    def _reason(self, topic: str, row: Row, error: TopicRefused) -> str:
        """Return why Kafka refuses a message, with its size and the topic's limit if it is too large."""
        limit = self.shared.facts.size_limit(topic)
        if error.code not in _TOO_LARGE or limit is None:
            return str(error)
        size = sum(len(part) for part in row[1:3] if part is not None)
        remedy = "make the message smaller, or raise the limit"
        return (
            f"a message of {size} bytes is too large for topic {topic!r}, whose max.message.bytes is {limit}: {remedy}"
        )

    def _shrink(self, locked: Sequence[LockedTopic]) -> None:
        for topic in locked:
            if topic.batch.rows:
                self.memory.limits[topic.name] = max(1, len(topic.batch.rows) // 8)

    def _grow(self, name: str) -> None:
        limits = self.memory.limits
        if name in limits:
            limits[name] *= 4
            if limits[name] >= self.shared.batch:
                del limits[name]

    def _set_aside(self, topic: str, message: int, reason: str) -> None:
        self.table.set_aside(topic, message, reason)
        self.shared.board.count("failed", topic)
        log.error("message set aside", topic=topic, id=message, error=reason)

    def _fail(self, topic: LockedTopic, reason: str, *, missing: bool = False) -> None:
        self.shared.board.count("retries", topic.name)
        pause = "until Kafka has it" if missing else f"{PAUSE:g} s"
        log.warning("topic paused", topic=topic.name, pause=pause, error=reason)
        self.table.fail(topic.name, reason, topic.sent_ids, missing=missing)
        self._forget(topic)

    def _release(self, locked: Sequence[LockedTopic]) -> None:
        if locked:
            self.table.release(locked)
        for topic in locked:
            self._forget(topic)

    def _forget(self, topic: LockedTopic) -> None:
        self.memory.to_recover.pop(topic.name, None)
        self.shared.board.sends(self.holder, self.memory.to_recover)
        self.give_back(topic.name, topic.largest)

    def _partition_of(self, topic: LockedTopic) -> Callable[[str], int]:
        """Return the function from a partition key to a partition, as the producer chooses it for a key."""

        def partition(partition_key: str) -> int:
            number = partition_by(partition_key.encode(), topic.partitions, self.publisher.partitioner)
            return -1 if number is None else number

        return partition


def _next_claim(topic: LockedTopic) -> Claim:
    """Return the claim after the batch was sent: up to its last message if there may be more."""
    batch = topic.batch
    last = batch.rows[-1][0] if batch.full and batch.rows else None
    return replace(topic.claim, position=topic.claim.position.after(batch.running, batch.newest, last))


def _produce(producer: Any, topic: str, rows: Sequence[Row], partition_of: Callable[[str], int]) -> None:
    produce = producer.produce
    for number, key, payload, extras in rows:
        headers: list[Any] = [(MESSAGE_ID, b"%d" % number)]
        if extras is None:
            produce(topic, payload, key, headers=headers)
            continue
        partition_key, stored_headers, _ = extras
        if stored_headers and MESSAGE_ID in stored_headers:  # the id before the message was due
            headers = []
        partition = -1 if partition_key is None else partition_of(partition_key)
        produce(topic, payload, key, partition, headers=headers + headers_of(stored_headers))
