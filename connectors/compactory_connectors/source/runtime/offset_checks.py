"""Topics and server of a session: checks that they are still those that the stored offsets are about."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import structlog

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory.records import Topic

from ..config.connector import ConnectorConfig
from ..offsets.offset import SourceOffset
from ..offsets.stored_offsets import StoredOffset
from ..offsets.topics import OFFSETS_TOPIC
from ..planning.table_plan import TablePlan
from ..postgres.server import Server

__all__ = [
    "TOPIC_CHECK_INTERVAL",
    "PublishedTopics",
    "ServerReplaced",
    "TopicReplaced",
    "refuse_replaced_server",
    "start_offset",
]

log = structlog.get_logger("compactory.source")

TOPIC_CHECK_INTERVAL = 5.0
"""Seconds between two checks if a topic was deleted and created again."""


class TopicReplaced(CompactoryError):
    """A topic that the source publishes to is another one now; a new session opens its tables again."""

    retryable = True


class PublishedTopics:
    """The topics of a session. Owned by its thread. Raises TopicReplaced, Unreachable."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._topics: dict[str, Topic] = {}
        self.known_ends: defaultdict[str, int] = defaultdict(int)
        """By topic, the least sum of its partitions' end offsets; add the records that were published to it."""
        self.check_at = 0.0
        """The time of the next check, by the monotonic clock."""

    def add(self, names: Iterable[str]) -> None:
        topics = self._kafka.topics(set(names))
        self._check_ends(topics)
        self._topics |= topics

    def identity(self, name: str) -> tuple[str, str | None]:
        return name, self._topics[name].topic_id if name in self._topics else None

    def count_partitions(self, names: Iterable[str]) -> int:
        return sum(len(self._topics[name].partitions) for name in names if name in self._topics)

    def check(self) -> None:
        """Check now and then that the topics are still those that the offsets are about."""
        if time.monotonic() < self.check_at:
            return
        self.check_at = time.monotonic() + TOPIC_CHECK_INTERVAL
        present = self._kafka.topics(self._topics) if self._topics else {}
        for name, topic in self._topics.items():
            if name not in present or present[name].topic_id != topic.topic_id:
                raise TopicReplaced(
                    f"topic {name!r} was deleted, or deleted and created again, since this session began"
                )
        self._check_ends(present)
        for name, topic in self._topics.items():
            if len(present[name].partitions) != len(topic.partitions):  # the producer must not use the old number
                raise TopicReplaced(f"topic {name!r} has {len(present[name].partitions)} partitions now")

    def _check_ends(self, topics: Mapping[str, Topic]) -> None:
        """Raise TopicReplaced if a topic ends before its known end: ends only grow, also with compaction."""
        partitions = [part for topic in topics.values() for part in topic.all()]
        ends = dict.fromkeys(topics, 0)
        for part, end in (self._kafka.high_watermarks(partitions) if partitions else {}).items():
            ends[part.topic] += end
        for name, end in ends.items():
            if end < self.known_ends[name]:
                raise TopicReplaced(f"topic {name!r} ends before its last written record: an older copy was put back")
        self.known_ends |= ends


class ServerReplaced(CompactoryError):
    """The server is a primary that a promoted standby has replaced; its rows are old."""

    retryable = True


def start_offset(
    stored: StoredOffset | None, topic: tuple[str, str | None], plan: TablePlan, known_end: int
) -> SourceOffset | None:
    """Return the part of the stored offset that holds for the present topic; None: the table is loaded afresh.

    Raises CompactoryError for an offset that can't be read.
    """
    if stored is not None and stored.problem is not None:
        raise CompactoryError(
            f"the offset of {plan.qualified} in topic {OFFSETS_TOPIC!r} can't be read ({stored.problem}); it was"
            " written by something else or a newer version; compactory source offsets reset forgets it, and the next"
            " run loads the table afresh"
        )
    offset = stored.offset if stored is not None else None
    if offset is None:
        return None
    if offset.topic is None:  # set by hand, for any topic
        return replace(offset, topic=topic)
    if offset.topic != topic:
        log.warning("another topic than before: the table is loaded afresh", table=plan.qualified, topic=topic)
        return None
    if offset.topic_end > known_end:
        log.warning("an older copy of the topic was put back: all rows are read", table=plan.qualified, topic=topic)
        return offset.for_restored_topic(sweep=plan.sweeps)
    return offset


def refuse_replaced_server(
    connector: ConnectorConfig, server: Server, plans: Iterable[TablePlan], offsets: Mapping[bytes, StoredOffset]
) -> None:
    """Raise ServerReplaced before a source of this server would fence the source of the promoted server."""
    for plan in plans:
        stored = offsets.get(plan.offset_key(server.database))
        offset = stored.offset if stored is not None else None
        identity = server.identity(plan.oid)
        if offset is not None and offset.identity.replaces(identity):
            raise ServerReplaced(
                f"the server at {connector.connection.server} is on timeline {identity.timeline}, and {plan.qualified}"
                f" was already read on timeline {offset.identity.timeline} of the same system: an old primary that"
                " nobody shut down? Shut it down, or leave it out of connection.url (with several hosts,"
                " loadBalanceHosts=true finds the other one); where an old backup was restored on purpose, compactory"
                " source offsets reset has its tables loaded afresh"
            )
