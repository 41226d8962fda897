"""A member of a consumer group: which partitions are ours, and from where on they are read.

The owner decides at which offset a partition goes on. A sink asks its database, and commits to the group only for
monitoring.
Callbacks of a rebalance run within :meth:`Group.poll`, never while a transaction is open.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import structlog

from compactory.errors import CompactoryError, Unreachable
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Consumer, Kafka, KafkaError, KafkaException, Message, TopicPartition, event_kind
from compactory.records import Partition
from compactory_connectors.connect.javatext.java_regex import java_pattern

__all__ = [
    "Fetched",
    "Group",
    "Locate",
    "Located",
    "Position",
    "at_epoch",
    "matching_topics",
    "membership",
    "split_topics",
]

log = structlog.get_logger("compactory.consumer")

_DEFAULTS: dict[str, Any] = {
    "topic.metadata.refresh.interval.ms": 10_000,  # finds new partitions
    "queued.max.messages.kbytes": 32_768,
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 100,
}

_CLASSIC: dict[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 10_000,  # a killed process keeps its partitions for as long; the library's 45 s is an outage
}

_SECONDS = 20.0  # for the group's offsets: Kafka ends the transaction of a process that died within 10

_OURS = "of a Compactory sink, for monitoring only"
"""Metadata of the offsets that sinks commit. A database restored from before a sink's first run must not obey them."""


def membership(properties: Mapping[str, Any]) -> dict[str, Any]:
    """How these client properties join a group. With ``group.protocol=consumer`` (KIP-848) the broker decides that."""
    return {} if properties.get("group.protocol") == "consumer" else _CLASSIC


class Located(NamedTuple):
    """Where a partition goes on. No record is between ``record_end`` and ``offset``, only marks of transactions.

    By the leader epoch of the record before ``record_end`` Kafka tells whether the log was cut off since (KIP-320).
    """

    offset: int
    record_end: int
    leader_epoch: int | None = None


@dataclass(slots=True, eq=False)
class Position:
    """Offsets of a partition since it was last located.

    Records below ``offset`` are applied, and records below ``read`` are read. ``leader_epoch`` is that of the last
    record that was read; None: unknown.
    """

    offset: int
    read: int
    leader_epoch: int | None = None


class Fetched(NamedTuple):
    """Records of one partition that follow each other from ``start`` on."""

    partition: Partition
    position: Position
    start: int
    messages: list[Message]


Locate = Callable[[Sequence[Partition]], Mapping[Partition, Located]]
"""Where partitions go on. Raises Unreachable, CompactoryError."""


class Group:
    """Membership of one process. Owned by one thread.

    A topic that begins with ``^`` is a pattern in Java's syntax: the group reads the topics whose whole names match the
    text behind it. Raises ValueError for a pattern that is not supported.

    ``positions`` are those of our partitions; None where ``locate`` was not asked yet. ``stopped`` is what is raised
    where nothing can go on until somebody decides.
    """

    def __init__(
        self,
        kafka: Kafka,
        topics: Iterable[str],
        group: str,
        properties: Mapping[str, Any],
        stopped: type[CompactoryError] = CompactoryError,
    ) -> None:
        self._stopped = stopped
        given = {**properties, **kafka.properties()}
        joins = membership(given)
        self._consumer: Consumer = kafka.member({**_DEFAULTS, **joins, **properties, "group.id": group})
        self._name = group
        strategy = {**joins, **given}.get("partition.assignment.strategy")
        self._incremental = strategy is None or "cooperative" in str(strategy)
        self.positions: dict[Partition, Position | None] = {}
        self.ends: dict[Partition, int] = {}
        """Where the log ended when its end was last reached."""
        self._locate: Locate | None = None
        self._committed: dict[Partition, int] = {}
        self.rebalances = 0
        self._kafka = kafka
        self._topics, self._patterns = split_topics(topics)
        self._subscribed: set[str] = set()
        self._subscribe(self._topics)

    def attach(self, locate: Locate) -> None:
        """Read from where ``locate`` says from now on. Raises Unreachable."""
        self.look_for_topics()
        self._locate = locate
        self.lose(self.positions)

    def look_for_topics(self) -> None:
        """Subscribe to the topics that match a pattern now; do nothing without a pattern. Raises Unreachable."""
        if self._patterns:
            self._subscribe(self._topics | matching_topics(self._kafka, self._patterns))

    def _subscribe(self, topics: set[str]) -> None:
        if topics == self._subscribed:
            return
        self._subscribed = topics
        if topics:
            self._consumer.subscribe(
                sorted(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )
        else:
            self._consumer.unsubscribe()

    def detach(self) -> None:
        """Read nothing until :meth:`attach`, and stay in the group by further polls."""
        self._locate = None
        self.lose(self.positions)
        self._consumer.pause(_listed(self.positions))

    def poll(self, limit: int, timeout: float) -> list[Fetched]:
        """Up to ``limit`` records of our partitions, waiting ``timeout`` seconds for the first.

        Raises Unreachable, CompactoryError.
        """
        self._settle()
        messages = self._messages(limit, timeout)
        if any(map(Message.error, messages)):
            for message in messages:
                self._event(message)
            messages = [message for message in messages if message.error() is None]
        found: dict[Partition, list[Message]] = defaultdict(list)
        places: list[Any] = [*zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)]
        for place, its in groupby(zip(places, messages, strict=True), itemgetter(0)) if len({*places}) > 1 else ():
            found[Partition(*place)] += map(itemgetter(1), its)
        if messages and not found:
            found[Partition(*places[0])] = messages
        return [fetched for part, its in found.items() if (fetched := self._fetched(part, its))]

    def _fetched(self, partition: Partition, messages: list[Message]) -> Fetched | None:
        position = self.positions.get(partition)
        if position is None:
            return None
        if (messages[0].offset() or 0) < position.read:  # the client has read elsewhere than it was told
            self.lose([partition])
            return None
        start, position.read = position.read, (messages[-1].offset() or 0) + 1
        position.leader_epoch = messages[-1].leader_epoch()
        return Fetched(partition, position, start, messages)

    def is_current(self, fetched: Fetched) -> bool:
        """Whether the partition is ours still, and was not located anew since these records were read."""
        return self.positions.get(fetched.partition) is fetched.position

    def advance(self, partition: Partition, offset: int) -> None:
        """Everything below this offset is applied."""
        position = self.positions[partition]
        assert position is not None
        position.offset, position.read = offset, max(offset, position.read)

    def lose(self, partitions: Iterable[Partition]) -> None:
        """Ask anew where these go on; what was read of them and not applied is read again."""
        self.positions |= dict.fromkeys(self.positions.keys() & {*partitions})

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Offsets that others committed to Kafka for the group, where there are any. Raises Unreachable."""
        return {part: item.offset for part, item in self.stored(partitions).items() if item.metadata != _OURS}

    def stored(self, partitions: Sequence[Partition]) -> dict[Partition, TopicPartition]:
        """The group's offsets, with their metadata and leader epochs, where there are any. Raises Unreachable."""
        try:
            answers = self._consumer.committed(_listed(partitions), timeout=_SECONDS)
        except KafkaException as error:
            raise Unreachable("Kafka", f"the group's offsets could not be read: {error.args[0].str()}") from error
        refused = next((item.error for item in answers if item.error is not None), None)
        if refused is not None:
            raise Unreachable("Kafka", f"the group's offsets could not be read: {refused.str()}")
        return {Partition(item.topic, item.partition): item for item in answers if item.offset >= 0}

    def lag(self) -> dict[Partition, int]:
        """Records that are not applied yet, as far as the client knows, without asking the broker."""
        found: dict[Partition, int] = {}
        for part, position in self.positions.items():
            if position is not None:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*part), cached=True)
                found[part] = max(0, high - max(position.offset, self.ends.get(part, 0)))
        return found

    def commit(self, partitions: Iterable[Partition] | None = None, *, wait: bool = False) -> None:
        """Tell Kafka our positions, for those who watch the group; nothing of ours reads them."""
        offsets = self.offsets()
        chosen = offsets if partitions is None else partitions
        due = {part: at for part in chosen if (at := offsets.get(part)) is not None}
        due = {part: at for part, at in due.items() if self._committed.get(part) != at}
        if not due:
            return
        listed = [TopicPartition(part.topic, part.partition, at, _OURS) for part, at in due.items()]
        try:
            self._consumer.commit(offsets=listed, asynchronous=not wait)  # type: ignore[call-overload]
        except KafkaException as error:
            log.debug("offsets were not committed to Kafka", error=str(error))
        else:
            self._committed.update(due)

    def close(self) -> None:
        """Leave the group."""
        self.commit(wait=True)
        self._consumer.close()

    def offsets(self) -> dict[Partition, int | None]:
        """The next offsets of our partitions; None where nobody was asked yet."""
        return {part: None if position is None else position.offset for part, position in self.positions.items()}

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self._assign(consumer, partitions)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Have the client read these once they are located: until then they are paused."""
        if not self._incremental:
            self.positions.clear()
        self.positions.update(dict.fromkeys(Partition(item.topic, item.partition) for item in partitions))
        for item in partitions:
            item.offset = 0  # a logical offset would be looked up, and undo the seek
            consumer.get_watermark_offsets(item, cached=True)  # makes it known to the client, which can pause it then
        consumer.pause(partitions)  # first: else the client fetches from offset 0, and gives up if the log lacks it
        (consumer.incremental_assign if self._incremental else consumer.assign)(partitions)

    def _assign_again(self, partition: Partition) -> None:
        """Have the client read a partition again: it gave up at an offset that the log lacks, and seeks no more."""
        if partition not in self.positions:  # it went meanwhile
            return
        again = _listed([partition] if self._incremental else self.positions)
        if self._incremental:
            self._consumer.incremental_unassign(again)
        self._assign(self._consumer, again)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = [Partition(item.topic, item.partition) for item in partitions]
        self.commit(gone)
        for part in gone:
            for facts in (self.positions, self.ends, self._committed):
                facts.pop(part, None)
        consumer.incremental_unassign(partitions) if self._incremental else consumer.unassign()

    def _messages(self, limit: int, timeout: float) -> list[Message]:
        try:
            first = self._consumer.poll(timeout)
            rebalances = self.rebalances
            with collector_paused():
                more = self._consumer.consume(limit - 1, 0.0) if first is not None and limit > 1 else []
        except KafkaException as error:
            raise Unreachable("Kafka", f"the group could not be polled: {error.args[0].str()}") from error
        messages = [first, *more] if first is not None else []
        if rebalances != self.rebalances:  # some may be of a partition that went and came back meanwhile
            self.lose(self.positions)
            messages = [message for message in messages if message.error()]  # an event comes only once
        return messages

    def _settle(self) -> None:
        """Seek where positions are unknown."""
        unknown = [part for part, position in self.positions.items() if position is None]
        if self._locate is None or not unknown:
            return
        for part, (offset, record_end, epoch) in self._locate(unknown).items():
            try:
                self._consumer.seek(at_epoch(part, record_end, epoch))
            except KafkaException as error:
                log.debug("could not seek yet", error=str(error))  # its fetcher starts; the next poll tries again
                continue
            self._consumer.resume(_listed([part]))
            self._wake(part)
            self.positions[part] = Position(offset, offset, epoch)
            self.ends.pop(part, None)  # records before that end are read again, and must not be passed over

    def _wake(self, partition: Partition) -> None:
        """Have the client fetch at once: its thread sleeps for up to a second after a seek, but not after a request."""
        try:
            self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=1)
        except KafkaException as error:
            log.debug("the first fetch may be late", error=str(error))

    def _event(self, message: Message) -> None:
        error = message.error()
        if error is None:
            return
        part = Partition(message.topic() or "", message.partition() or 0)
        if error.fatal():
            raise self._stopped(f"Kafka's client can't go on: {error.str()}; start anew")
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise self._stopped(f"Kafka refuses to let us join group {self._name!r}: {error.str()}; grant Read on it")
        kind = event_kind(error)
        if kind == "end":
            self.ends[part] = message.offset() or 0
        elif kind == "lost":
            self._assign_again(part)  # and have it checked against the log
        elif kind == "cut":  # only the client knows, as the log may have grown since
            raise self._stopped(
                f"partition {part.partition} of topic {part.topic!r} was cut off, as by an unclean leader election:"
                f" {error.str()}; check what is lost, and begin anew at the offset where it ends"
            )
        elif kind == "refused":
            raise self._stopped(
                f"Kafka refuses to let us read topic {part.topic!r}: {error.str()}; grant Read on the topic and on the"
                " group"
            )
        else:
            log.warning("Kafka", error=error.str(), topic=part.topic)


def at_epoch(partition: Partition, offset: int, leader_epoch: int | None, metadata: str = "") -> TopicPartition:
    """Return the client's form of an offset. ``leader_epoch`` is that of the record before it; None: unknown."""
    return TopicPartition(*partition, offset, metadata, -1 if leader_epoch is None else leader_epoch)


def split_topics(topics: Iterable[str]) -> tuple[set[str], list[re.Pattern[str]]]:
    """Return the names, and the patterns of those that begin with ``^``. Raises ValueError for a bad pattern."""
    topics = list(topics)
    names = {topic for topic in topics if not topic.startswith("^")}
    return names, [java_pattern(topic[1:]) for topic in topics if topic.startswith("^")]


def matching_topics(kafka: Kafka, patterns: Iterable[re.Pattern[str]]) -> set[str]:
    """Return the topics of Kafka whose whole names match one of the patterns. Raises Unreachable."""
    return {name for pattern in patterns for name in filter(pattern.fullmatch, kafka.topic_names())}


def _listed(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(part.topic, part.partition) for part in partitions]
