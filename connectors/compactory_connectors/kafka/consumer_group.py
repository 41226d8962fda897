"""A member of a consumer group: the partitions that are assigned to this process, and their positions.

The caller decides at which offset a partition starts. A sink asks its database, and commits to the group only for
monitoring. Callbacks of a rebalance run within :meth:`Group.poll`, never while a transaction is open.
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
    "group_properties",
    "matching_topics",
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


def group_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties for the classic group protocol; none if ``group.protocol=consumer`` is set (KIP-848)."""
    return {} if properties.get("group.protocol") == "consumer" else _CLASSIC


class Located(NamedTuple):
    """The next offset of a partition. Between ``record_end`` and ``offset`` there are only control records.

    ``leader_epoch`` is that of the record before ``record_end``: Kafka finds out by it if the log was truncated since
    (KIP-320).
    """

    offset: int
    record_end: int
    leader_epoch: int | None = None


@dataclass(slots=True, eq=False)
class Position:
    """Offsets of an assigned partition since its start offset was last looked up.

    Records below ``offset`` are applied. Records below ``read`` are read. ``leader_epoch`` is that of the last record
    that was read; None: unknown.
    """

    offset: int
    read: int
    leader_epoch: int | None = None


class Fetched(NamedTuple):
    """Consecutive records of one partition. ``start`` is the offset of the first."""

    partition: Partition
    position: Position
    start: int
    messages: list[Message]


Locate = Callable[[Sequence[Partition]], Mapping[Partition, Located]]
"""Returns the start offset of each partition. Raises Unreachable, CompactoryError."""


class Group:
    """The membership of one process. Owned by one thread.

    A topic that begins with ``^`` is a pattern in Java's syntax: the group reads every topic whose whole name matches
    the text after ``^``. Raises ValueError for a pattern that is not supported.

    ``positions`` has every assigned partition; the position is None until ``locate`` was called. ``stopped`` is the
    class of errors that only an operator can resolve.
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
        client_properties = {**properties, **kafka.properties()}
        joining = group_properties(client_properties)
        self._consumer: Consumer = kafka.member({**_DEFAULTS, **joining, **properties, "group.id": group})
        self._name = group
        strategy = {**joining, **client_properties}.get("partition.assignment.strategy")
        self._incremental = strategy is None or "cooperative" in str(strategy)
        self.positions: dict[Partition, Position | None] = {}
        self.ends: dict[Partition, int] = {}
        """The end of the log of each partition when the end was last reached."""
        self._locate: Locate | None = None
        self._committed: dict[Partition, int] = {}
        self.rebalances = 0
        self._kafka = kafka
        self._topics, self._patterns = split_topics(topics)
        self._subscribed: set[str] = set()
        self._subscribe(self._topics)

    def attach(self, locate: Locate) -> None:
        """Start to read, from the offsets that ``locate`` returns. Raises Unreachable."""
        self.look_for_topics()
        self._locate = locate
        self.forget_positions(self.positions)

    def look_for_topics(self) -> None:
        """Subscribe to new topics that match a pattern. Does nothing without a pattern. Raises Unreachable."""
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
        """Read nothing until :meth:`attach`. Further polls keep the membership."""
        self._locate = None
        self.forget_positions(self.positions)
        self._consumer.pause(_listed(self.positions))

    def poll(self, limit: int, timeout: float) -> list[Fetched]:
        """Return up to ``limit`` records, and wait up to ``timeout`` seconds for the first.

        Raises Unreachable, CompactoryError.
        """
        self._seek_to_start_offsets()
        messages = self._messages(limit, timeout)
        if any(map(Message.error, messages)):
            for message in messages:
                self._handle_error(message)
            messages = [message for message in messages if message.error() is None]
        fetched = [self._fetched(partition, run) for partition, run in _by_partition(messages).items()]
        return [run for run in fetched if run is not None]

    def _fetched(self, partition: Partition, messages: list[Message]) -> Fetched | None:
        position = self.positions.get(partition)
        if position is None:
            return None
        if (messages[0].offset() or 0) < position.read:  # the client has ignored the seek
            self.forget_positions([partition])
            return None
        start, position.read = position.read, (messages[-1].offset() or 0) + 1
        position.leader_epoch = messages[-1].leader_epoch()
        return Fetched(partition, position, start, messages)

    def is_current(self, fetched: Fetched) -> bool:
        """Return True if the partition is still assigned, and its position was not forgotten since this fetch."""
        return self.positions.get(fetched.partition) is fetched.position

    def advance(self, partition: Partition, offset: int) -> None:
        """Set the offset below which every record is applied."""
        position = self.positions[partition]
        assert position is not None
        position.offset, position.read = offset, max(offset, position.read)

    def forget_positions(self, partitions: Iterable[Partition]) -> None:
        """Look up the start offsets of these partitions again; records that were not applied are read again."""
        self.positions |= dict.fromkeys(self.positions.keys() & {*partitions})

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offsets of the group that were committed by other programs. Raises Unreachable."""
        return {part: item.offset for part, item in self.stored(partitions).items() if item.metadata != _OURS}

    def stored(self, partitions: Sequence[Partition]) -> dict[Partition, TopicPartition]:
        """Return the committed offsets of the group, with metadata and leader epochs. Raises Unreachable."""
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
        lag: dict[Partition, int] = {}
        for part, position in self.positions.items():
            if position is not None:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*part), cached=True)
                lag[part] = max(0, high - max(position.offset, self.ends.get(part, 0)))
        return lag

    def commit(self, partitions: Iterable[Partition] | None = None, *, wait: bool = False) -> None:
        """Commit positions to Kafka, for tools that watch the group: Compactory does not read them."""
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
        """Return the next offsets of our partitions; None where nobody was asked yet."""
        return {part: None if position is None else position.offset for part, position in self.positions.items()}

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self._assign(consumer, partitions)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Assign partitions, paused until their start offsets are known."""
        if not self._incremental:
            self.positions.clear()
        self.positions.update(dict.fromkeys(Partition(item.topic, item.partition) for item in partitions))
        for item in partitions:
            item.offset = 0  # a logical offset would be looked up, and undo the seek
            consumer.get_watermark_offsets(item, cached=True)  # makes it known to the client, which can pause it then
        consumer.pause(partitions)  # first: else the client fetches from offset 0, and gives up if the log lacks it
        (consumer.incremental_assign if self._incremental else consumer.assign)(partitions)

    def _reassign(self, partition: Partition) -> None:
        """Assign a partition again after the client gave it up, because the log lacks its offset."""
        if partition not in self.positions:  # revoked meanwhile
            return
        partitions = _listed([partition] if self._incremental else self.positions)
        if self._incremental:
            self._consumer.incremental_unassign(partitions)
        self._assign(self._consumer, partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        revoked = [Partition(item.topic, item.partition) for item in partitions]
        self.commit(revoked)
        for part in revoked:
            for state in (self.positions, self.ends, self._committed):
                state.pop(part, None)
        consumer.incremental_unassign(partitions) if self._incremental else consumer.unassign()

    def _messages(self, limit: int, timeout: float) -> list[Message]:
        try:
            first = self._consumer.poll(timeout)
            rebalances = self.rebalances
            with collector_paused():
                following = self._consumer.consume(limit - 1, 0.0) if first is not None and limit > 1 else []
        except KafkaException as error:
            raise Unreachable("Kafka", f"the group could not be polled: {error.args[0].str()}") from error
        messages = [first, *following] if first is not None else []
        if rebalances != self.rebalances:  # some may be of a partition that was revoked and assigned again
            self.forget_positions(self.positions)
            messages = [message for message in messages if message.error()]  # the client reports an error only once
        return messages

    def _seek_to_start_offsets(self) -> None:
        """Look up the start offset of each partition without a position, and seek to it."""
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
            self._fetch_now(part)
            self.positions[part] = Position(offset, offset, epoch)
            self.ends.pop(part, None)  # records before that end are read again, and must not be skipped

    def _fetch_now(self, partition: Partition) -> None:
        """Make the client fetch now: its thread sleeps up to a second after a seek, but wakes for a request."""
        try:
            self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=1)
        except KafkaException as error:
            log.debug("the first fetch may be late", error=str(error))

    def _handle_error(self, message: Message) -> None:
        error = message.error()
        if error is None:
            return
        part = Partition(message.topic() or "", message.partition() or 0)
        if error.fatal():
            raise self._stopped(f"Kafka's client can't go on: {error.str()}; restart the process")
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise self._stopped(
                f"this client may not join group {self._name!r}: {error.str()}; grant Read on the group"
            )
        kind = event_kind(error)
        if kind == "end":
            self.ends[part] = message.offset() or 0
        elif kind == "lost":
            self._reassign(part)  # its start offset is checked against the log then
        elif kind == "cut":  # only the client notices: the log may have grown since
            raise self._stopped(
                f"the log of partition {part.partition} of topic {part.topic!r} was truncated, as by an unclean leader"
                f" election: {error.str()}; check which records are lost, and start at the offset where the log ends"
            )
        elif kind == "refused":
            raise self._stopped(
                f"this client may not read topic {part.topic!r}: {error.str()}; grant Read on topic and group"
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


def _by_partition(messages: list[Message]) -> dict[Partition, list[Message]]:
    """Return the messages of each partition, in order. Most polls return messages of one partition."""
    partitions: list[Any] = [*zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)]
    if len({*partitions}) <= 1:
        return {Partition(*partitions[0]): messages} if messages else {}
    runs: dict[Partition, list[Message]] = defaultdict(list)
    for partition, run in groupby(zip(partitions, messages, strict=True), itemgetter(0)):
        runs[Partition(*partition)] += map(itemgetter(1), run)
    return runs


def _listed(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(part.topic, part.partition) for part in partitions]
