"""The topics that a session publishes to, as they were when their tables were opened."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory.records import Topic

from ..offsets.topics import TopicEnds

__all__ = ["TOPIC_CHECK_INTERVAL", "PublishedTopics", "TopicReplaced"]

TOPIC_CHECK_INTERVAL = 5.0
"""Seconds between two checks if a topic was deleted and created again."""


class TopicReplaced(CompactoryError):
    """A topic that the source publishes to is another one now; a new session opens its tables again."""

    retryable = True


class PublishedTopics:
    """Owned by the session's thread. Raises TopicReplaced, Unreachable."""

    def __init__(self, kafka: Kafka, ends: TopicEnds) -> None:
        self._kafka = kafka
        self._ends = ends
        self._topics: dict[str, Topic] = {}
        self.check_at = 0.0
        """The time of the next check, by the monotonic clock."""

    def add(self, names: Iterable[str]) -> None:
        """Remember these topics as they are now."""
        topics = self._kafka.topics(set(names))
        self._check_ends(topics)
        self._topics |= topics

    def identity(self, name: str) -> tuple[str, str | None]:
        """Return the topic's name and id."""
        return name, self._topics[name].topic_id if name in self._topics else None

    def count_partitions(self, names: Iterable[str]) -> int:
        """Return the number of partitions of these topics."""
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
        for name in self._ends.look(topics):
            raise TopicReplaced(f"topic {name!r} ends before its last written record: an older copy was put back")
