"""A thread of a relay: takes the locks of topics, sends their batches, gives the locks back.

Batches of several topics are read, sent in one Kafka transaction together with their ids, and deleted by exact id with
the next read: rows of many topics lie side by side, and each read, delete and transaction costs a round trip. The
transactional id is the holder's, whose name is in the lock: whoever takes over a lock that was not renewed fences that
id first, and then deletes what the last committed transaction held. So a holder that lost its lock can't send, and
what it sent is not sent again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Final
from uuid import uuid4

import psycopg
import structlog

from compactory.errors import CompactoryError, ConfigError
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Kafka, KafkaError
from compactory_connectors.backoff import Backoff
from compactory_connectors.kafka.partitioner import partition_by
from compactory_connectors.kafka.publisher import EndInDoubt, Publisher, TopicRefused

from .message import MESSAGE_ID, headers_of
from .rules import TopicRules
from .sent_ids import MARKS_TOPIC, SentIds, SentMarks
from .statements import PAUSE, UNREAD, Batch, Claim, Held, OutboxTable, Pending, Row, open_outbox
from .status import Board
from .topic_facts import TopicFacts, TopicFailed

__all__ = ["BATCH", "Sender", "Shared", "newest_of_keys"]

log = structlog.get_logger("compactory.outbox")

BATCH: Final = 60_000  # messages
_OF_TOPIC = 30_000  # messages in a batch of one topic: more gain it little, and other topics wait longer
_TOGETHER = 64  # topics in a transaction
_SLICE = 500  # messages after which the next batch is received as far as it is there
_BYTES = 16 << 20  # of payloads in a batch; a larger message is a batch of its own
_SHARE = 1.0  # seconds that a topic may be sent while others wait
_QUICK = 2.0  # seconds that a transaction may take before batches that were made smaller grow again
_KEEP = 0.5  # seconds that a lock is kept for more messages

_POISON = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG,
    KafkaError.INVALID_TIMESTAMP, KafkaError.POLICY_VIOLATION,
})  # fmt: skip
"""Errors of a message and not of its topic."""

_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001


@dataclass(slots=True)
class Shared:
    """The objects that the threads of a relay share. ``done`` tells the keeper that a sender is.

    ``busy``: numbers of the senders that have topics. ``ending``: it ends once everything is sent.
    """

    conninfo: Mapping[str, Any]
    kafka: Kafka
    rules: Mapping[str, TopicRules]
    threads: int
    batch: int
    board: Board
    stop: threading.Event
    work: SimpleQueue[Pending | None]
    done: Callable[[str, int], None]
    facts: TopicFacts
    busy: set[int] = field(default_factory=set)
    ending: threading.Event = field(default_factory=threading.Event)


class Sender:
    """Owned by the thread that runs it."""

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._number = number
        self._taken: set[str] = set()  # topics that the keeper gives to nobody else
        self._lost: dict[str, Pending] = {}  # topics whose lock is held: to be taken over from this name after an error
        self._apart = False  # those are sent one by one, as one of them is at fault
        self._doubtful_holders: set[str] = set()  # whose last transaction may be committed in part
        self._backoff = Backoff()
        self._limits: dict[str, int] = {}  # topic → messages in a batch, below the usual while one is refused

    def run(self) -> None:
        """Work until the relay stops; an outage is waited for."""
        while not self._shared.stop.is_set():
            try:
                with self._session():
                    self._work()
            except EndInDoubt as error:  # the next session has another transactional id
                log.info("a new producer is opened", thread=self._number, reason=str(error))
            except (psycopg.Error, CompactoryError) as error:
                self._shared.board.failed(str(error))
                log.warning("the outbox is not sent", thread=self._number, error=" ".join(str(error).split()))
                self._shared.stop.wait(self._backoff.pause())

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
            try:
                with self._shared.board.holding(self._holder):
                    yield
            finally:
                if self._publisher.was_ended_outside:
                    self._doubtful_holders.add(self._holder)

    def _work(self) -> None:
        lost = [*self._lost.values()]
        for group in [[each] for each in lost] if self._apart else [lost]:
            if group and not self._shared.stop.is_set():
                self._serve(group)
        self._apart = False
        while (pending := self._shared.work.get()) is not None and not self._shared.stop.is_set():
            self._shared.busy.add(self._number)
            group = self._with_others(pending)
            self._taken = {each.topic for each in group}
            try:
                self._serve(group)
            finally:
                self._shared.busy.discard(self._number)
                for topic in [*self._taken]:
                    self._hand_back(topic)

    def _with_others(self, first: Pending) -> list[Pending]:
        """A topic, and a share of those that wait as well: one transaction sends them all. Idle threads get as many."""
        work = self._shared.work
        idle = self._shared.threads - len(self._shared.busy)
        group = [first]
        for _ in range(0 if first.alone else min(_TOGETHER - 1, work.qsize() // (idle + 1))):
            try:
                other = work.get_nowait()
            except Empty:
                break
            if other is None or other.alone or other.lapsed != first.lapsed:
                work.put(other)
                break
            group.append(other)
        return group

    def _hand_back(self, topic: str, sent: int = 0) -> None:
        """Let the keeper give the topic to any thread again."""
        if topic in self._taken:
            self._taken.discard(topic)
            self._shared.done(topic, sent)

    def _serve(self, group: Sequence[Pending]) -> None:
        """Take the locks of topics where they are to be had, and send. All have the same lapsed holder, or none."""
        group = [each for each in group if not each.missing or self._shared.facts.exists(each.topic)]
        if not group:
            return
        lapsed = group[0].lapsed
        last = self._fence(lapsed) if lapsed is not None else {}
        pending = {each.topic: each for each in group}
        held = [Held(pending[claim.topic], claim) for claim in self._table.claim(group, last)]
        self._backoff.reset()
        others = {topic: each for topic, each in self._lost.items() if topic not in pending}
        self._lost = others | {each.topic: Pending(each.topic, self._holder, own=True) for each in held}
        self._shared.board.sends(self._holder, self._lost)
        if held and lapsed is not None:
            log.info("topics taken over", topics=[each.topic for each in held], holder=lapsed)
        self._drain(held)

    def _drain(self, held: list[Held], *, keep: bool = True) -> None:
        """Send batches until no more come, and give the locks back. Full batches overlap with the next read.

        ``keep``: no other topic waits for this one. Its lock is kept for a while, as messages often follow one another.
        """
        began = time.monotonic()
        while held := self._ready(held):
            tired = time.monotonic() - began > _SHARE and not (keep and self._shared.work.empty())
            keeps = keep and len(held) == 1
            behind = {each.topic: _behind(each) for each in held}
            going = {each.topic for each in held if (not tired if each.batch.full else keeps and self._waits(each))}
            ahead = [
                replace(each, claim=behind[each.topic]) for each in held if each.topic in going and self._leads(each)
            ]
            try:
                self._send([each for each in held if each.batch.rows], ahead)
            except TopicRefused as error:
                held = self._narrow(held, error)
                continue
            except CompactoryError as error:
                if not isinstance(error, EndInDoubt):
                    self._shrink(held)  # Kafka may be too slow for that many
                raise
            for each in held:
                each.claim = behind[each.topic]
                each.batch = each.batch if each.batch.rows else UNREAD
            if self._shared.stop.is_set():
                going.clear()
            self._release([each for each in held if each.topic not in going])
            held = [each for each in held if each.topic in going]

    def _ready(self, held: Sequence[Held]) -> list[Held]:
        """Read the next batch of each topic that has none; return the topics that can be sent."""
        for each in held:
            each.pending.seen.clear()
            most = min(self._shared.batch // len(held) or 1, _OF_TOPIC)
            each.limit = min(self._limits.get(each.topic, most), most)
        while lacking := [each for each in held if each.batch is UNREAD or each.is_early]:
            for each, batch in zip(lacking, self._table.read(lacking, _BYTES // len(held)), strict=True):
                each.batch, each.done = batch, ()
                if batch.moved is not None:
                    each.claim, each.batch = batch.moved, UNREAD
                elif batch.waiting:
                    self._table.hold_back(each.topic, batch.waiting)
                    each.batch = UNREAD
        return [each for each in held if not each.batch.rows or self._is_known(each)]

    def _is_known(self, held: Held) -> bool:
        try:
            held.partitions = self._shared.facts.look(held.topic, self._table.tell_limits)
        except TopicFailed as error:
            remedy = f"or drop its messages: compactory outbox drop --topic {held.topic}"
            self._fail(held, f"{error}, {remedy}", missing=True)
            return False
        except ConfigError as error:
            self._fail(held, str(error))
            return False
        return True

    def _waits(self, held: Held) -> bool:
        """Whether to read once more with the lock kept."""
        shared = self._shared
        if held.pending.own or shared.ending.is_set() or shared.stop.is_set() or not shared.work.empty():
            return False
        if held.batch.rows:
            return True
        return held.pending.seen.wait(_KEEP) and not shared.stop.is_set() and shared.work.empty()

    def _leads(self, held: Held) -> bool:
        """Whether the next batch may be read before this one is deleted.

        Nobody knows where transactions began that ran at the first look: the next one may go back below this batch.
        """
        return held.batch.full and held.topic not in self._limits and (held.largest > 0 or not held.batch.running)

    def _send(self, held: Sequence[Held], ahead: Sequence[Held]) -> None:
        """Send batches in one transaction; those ``ahead`` have the next one then.

        What was sent before is deleted for good before the ids of this transaction replace those of the last. Raises
        TopicRefused.
        """
        following: dict[str, Batch] = {}
        sent = {each.topic: SentIds([row[0] for row in each.batch.rows], each.batch.created) for each in held}
        kept = {
            each.topic: newest_of_keys(each.batch.rows) if self._rules(each.topic).compact else each.batch.rows
            for each in held
        }

        @collector_paused()  # rows come by the thousand, and hold no cycles
        def produce(producer: Any) -> None:
            for topic, ids in sent.items():
                self._marks.mark(producer, self._holder, topic, ids)
            for each in held:  # the client then registers their partitions by one request, not by one for each
                _produce(producer, each.topic, kept[each.topic][:1], self._place(each))
            for each in held:
                rows = kept[each.topic]
                for start in range(1, len(rows), _SLICE):
                    _produce(producer, each.topic, rows[start : start + _SLICE], self._place(each))
                    self._table.receive()
            following.update(finish())

        began = time.monotonic()
        if held:
            with self._table.sending(held, ahead, _BYTES // len(held)) as finish:
                self._publisher.transact(produce)
        for each in held:
            self._shared.board.sent(each.topic, len(kept[each.topic]))
            if each.topic in self._limits and time.monotonic() - began < _QUICK:
                limit = self._limits.pop(each.topic) * 4
                self._limits |= {each.topic: limit} if limit < self._shared.batch else {}
            each.done = sent[each.topic].ids
            each.largest = max(each.largest, len(each.done))
            each.batch = following.get(each.topic, UNREAD)

    def _narrow(self, held: Sequence[Held], error: TopicRefused) -> list[Held]:
        """Find the message that is refused: send each topic by itself, then fewer messages, until it is alone.

        Return the topics to go on with. Raises the error if that needs another session.
        """
        self._apart = not self._publisher.usable
        going = self._blamed(held[0], error) if len(held) == 1 else []
        if self._apart:
            raise error
        for each in sorted(held if len(held) > 1 else [], key=lambda each: len(each.batch.rows)):
            each.batch = UNREAD
            self._drain([each], keep=False)
        return going

    def _blamed(self, only: Held, error: TopicRefused) -> list[Held]:
        """Leave the topic of a refused batch alone, or its message if there is one; else read fewer messages."""
        self._shrink([only])
        rows, only.batch = only.batch.rows, UNREAD
        if error.code not in _POISON:
            self._fail(only, str(error), missing=error.code in _UNKNOWN)
            return []
        if len(rows) == 1:
            self._set_aside(only.topic, rows[0][0], str(error))
        return [only]

    def _shrink(self, held: Sequence[Held]) -> None:
        """Read fewer messages of these topics next time."""
        self._limits |= {each.topic: max(1, len(each.batch.rows) // 8) for each in held if each.batch.rows}

    def _set_aside(self, topic: str, message: int, reason: str) -> None:
        self._table.set_aside(topic, message, reason, holds=self._rules(topic).on_failure == "wait")
        self._shared.board.set_aside(topic)
        log.error("message set aside", topic=topic, id=message, error=reason)

    def _fail(self, held: Held, reason: str, *, missing: bool = False) -> None:
        self._shared.board.retried(held.topic)
        pause = "until Kafka has it" if missing else f"{PAUSE:g} s"
        log.warning("topic is left alone", topic=held.topic, pause=pause, error=reason)
        self._table.fail(held.topic, reason, held.done, missing=missing)
        self._end(held)

    def _release(self, held: Sequence[Held]) -> None:
        if held:
            self._table.release(held)
        for each in held:
            self._end(each)

    def _end(self, held: Held) -> None:
        """The topic's lock was given back."""
        self._lost.pop(held.topic, None)
        self._shared.board.sends(self._holder, self._lost)
        self._hand_back(held.topic, held.largest)

    def _fence(self, holder: str) -> dict[str, SentIds]:
        """Make sure that a holder that did not renew its lock can't send any more; what it sent last, by topic.

        A frozen one may have locks on rows in Postgres: its session ends as well.
        """
        with closing(self._producer(holder)) as publisher:
            publisher.open()
        self._table.end_session(holder)
        return {} if holder in self._doubtful_holders else self._marks.last(holder)

    def _producer(self, holder: str) -> Publisher:
        # a commit does not wait for the linger time; until then only full batches leave, one or few for each topic
        return Publisher(
            self._shared.kafka, f"outbox-{holder}", MARKS_TOPIC, overrides={"linger.ms": 1000}, may_reopen=False
        )

    def _place(self, held: Held) -> Callable[[str], int]:
        """The partition of a partition key: where the producer would put a key of that name."""

        def place(partition_key: str) -> int:
            found = partition_by(partition_key.encode(), held.partitions, self._publisher.partitioner)
            return -1 if found is None else found

        return place

    def _rules(self, topic: str) -> TopicRules:
        return self._shared.rules.get(topic, TopicRules())


def _behind(held: Held) -> Claim:
    """The claim after the batch was sent, as far as its last message where there is more."""
    batch = held.batch
    last = batch.rows[-1][0] if batch.full and batch.rows else None
    return replace(held.claim, position=held.claim.position.after(batch.running, batch.newest, last))


def _produce(producer: Any, topic: str, rows: Sequence[Row], place_of: Callable[[str], int]) -> None:
    put = producer.produce
    for number, key, payload, more in rows:
        headers: list[Any] = [(MESSAGE_ID, b"%d" % number)]
        if more is None:
            put(topic, payload, key, headers=headers)
            continue
        partition_key, given, _ = more
        place = -1 if partition_key is None else place_of(partition_key)
        put(topic, payload, key, place, headers=headers + headers_of(given))


def newest_of_keys(rows: Sequence[Row]) -> list[Row]:
    """Messages without those that a later one with the same key supersedes. Pure."""
    newest = {key: number for number, key, _, _ in rows}
    return [row for row in rows if row[1] is None or newest[row[1]] == row[0]]
