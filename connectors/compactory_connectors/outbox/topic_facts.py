"""Facts about topics: existence, number of partitions, size limit of a message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

__all__ = ["TopicFacts", "TopicFailed"]

StoreLimits: TypeAlias = Callable[[Mapping[str, int]], None]

_FACTS_AGE = 60.0  # seconds
_ABSENCE_AGE = 1.0  # seconds


class TopicFailed(Exception):
    """The topic can't be sent now. No record of it is in an open transaction."""


class TopicFacts:
    """Facts about topics, kept for a minute; the absence of a topic for a second. Thread-safe.

    ``waiting`` returns topics to ask about in the same request: a request for each takes longer than a small batch.
    """

    def __init__(self, kafka: Kafka, waiting: Callable[[], Iterable[str]] = tuple) -> None:
        self._kafka = kafka
        self._waiting = waiting
        self._lock = threading.Lock()  # guards the next four; a thread that waited finds the answers of another
        self._asked_at: dict[str, float] = {}
        self._absent_at: dict[str, float] = {}  # topics that the broker did not have
        self._partitions: dict[str, int] = {}
        self._size_limits: dict[str, int] = {}  # bytes

    def partitions(self, topic: str, store_limits: StoreLimits | None = None) -> int:
        """Return the number of partitions of a topic. Raises TopicFailed if it is missing, ConfigError, Unreachable.

        ``store_limits`` is called with the size limit in bytes of a message, for each topic that was asked about.
        """
        with self._lock:
            if time.monotonic() - self._asked_at.get(topic, -_FACTS_AGE) >= _FACTS_AGE:
                self._ask_with_others(topic, store_limits)
            if topic not in self._partitions:
                raise TopicFailed(f"topic {topic!r} does not exist on Kafka at {self._kafka.bootstrap}: create it")
            return self._partitions[topic]

    def size_limit(self, topic: str) -> int | None:
        """Return max.message.bytes of a topic, or None if it is unknown."""
        with self._lock:
            return self._size_limits.get(topic)

    def exists(self, topic: str, store_limits: StoreLimits | None = None) -> bool:
        """Return True if Kafka has the topic, or refuses to say. ``store_limits`` as in :meth:`partitions`.

        Asks Kafka at each call, except within a second after Kafka lacked the topic. Raises Unreachable.
        """
        with self._lock:
            if time.monotonic() - self._absent_at.get(topic, -_ABSENCE_AGE) < _ABSENCE_AGE:
                return False
            try:
                self._ask_with_others(topic, store_limits)
            except ConfigError:
                return True
            return topic in self._partitions

    def _ask_with_others(self, topic: str, store_limits: StoreLimits | None) -> None:
        try:
            self._ask({topic, *self._waiting()}, store_limits)
        except ConfigError:  # about any of them
            self._ask({topic}, store_limits)

    def _ask(self, topics: set[str], store_limits: StoreLimits | None) -> None:
        present = self._kafka.topics(topics)
        missing = topics - present.keys()
        for topic in missing:
            self._partitions.pop(topic, None)
            self._asked_at.pop(topic, None)
        self._absent_at |= dict.fromkeys(missing, time.monotonic())
        if present and store_limits is not None:
            limits = self._sizes(present)
            store_limits(limits)
            self._size_limits |= limits
        self._partitions |= {name: len(topic.partitions) for name, topic in present.items()}
        self._asked_at |= dict.fromkeys(present, time.monotonic())

    def _sizes(self, topics: Iterable[str]) -> dict[str, int]:
        try:
            configs = self._kafka.topic_configs(topics)
        except ConfigError:
            return {}  # the right DescribeConfigs is optional
        sizes = {topic: config.get("max.message.bytes") for topic, config in configs.items()}
        return {topic: int(size) for topic, size in sizes.items() if size is not None}
