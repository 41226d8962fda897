"""Facts about topics: existence, number of partitions, size limit of a message."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

__all__ = ["TopicFacts", "TopicFailed"]

StoreLimits: TypeAlias = Callable[[Mapping[str, int]], None]

_FACTS_AGE = 60.0  # seconds
_ABSENCE_AGE = 1.0  # seconds


class TopicFailed(Exception):
    """The topic can't be sent now. No record of it is in an open transaction."""


class _Facts(NamedTuple):
    """``asked_at`` is of the monotonic clock. ``partitions`` None: Kafka did not have the topic."""

    asked_at: float = -math.inf
    partitions: int | None = None
    size_limit: int | None = None


@dataclass(slots=True)
class TopicFacts:
    """Facts about topics, kept for a minute; the absence of a topic for a second. Thread-safe.

    ``waiting`` returns topics to ask about in the same request: a request for each takes longer than a small batch.
    """

    kafka: Kafka
    waiting: Callable[[], Iterable[str]] = tuple
    _lock: threading.Lock = field(default_factory=threading.Lock)  # a thread that waited finds the answers of another
    _facts: dict[str, _Facts] = field(default_factory=dict)

    def partitions(self, topic: str, store_limits: StoreLimits | None = None) -> int:
        """Return the number of partitions of a topic. Raises TopicFailed if it is missing, ConfigError, Unreachable.

        ``store_limits`` is called with the size limit in bytes of a message, for each topic that was asked about.
        """
        with self._lock:
            facts = self._facts.get(topic, _Facts())
            if facts.partitions is None or time.monotonic() - facts.asked_at >= _FACTS_AGE:
                facts = self._ask_with_others(topic, store_limits)
        if facts.partitions is None:
            raise TopicFailed(f"topic {topic!r} does not exist on Kafka at {self.kafka.bootstrap}: create it")
        return facts.partitions

    def size_limit(self, topic: str) -> int | None:
        """Return max.message.bytes of a topic, or None if it is unknown."""
        return self._facts.get(topic, _Facts()).size_limit

    def exists(self, topic: str, store_limits: StoreLimits | None = None) -> bool:
        """Return True if Kafka has the topic, or refuses to say. ``store_limits`` as in :meth:`partitions`.

        Asks Kafka at each call, except within a second after Kafka lacked the topic. Raises Unreachable.
        """
        with self._lock:
            facts = self._facts.get(topic, _Facts())
            if facts.partitions is None and time.monotonic() - facts.asked_at < _ABSENCE_AGE:
                return False
            try:
                return self._ask_with_others(topic, store_limits).partitions is not None
            except ConfigError:
                return True

    def _ask_with_others(self, topic: str, store_limits: StoreLimits | None) -> _Facts:
        try:
            self._ask({topic, *self.waiting()}, store_limits)
        except ConfigError:  # about any of them
            self._ask({topic}, store_limits)
        return self._facts[topic]

    def _ask(self, topics: set[str], store_limits: StoreLimits | None) -> None:
        present = self.kafka.topics(topics)
        limits: Mapping[str, int] = {}
        if present and store_limits is not None:
            limits = self._sizes(present)
            store_limits(limits)
        clock = time.monotonic()
        for name in topics:
            count = len(present[name].partitions) if name in present else None
            self._facts[name] = _Facts(clock, count, limits.get(name, self._facts.get(name, _Facts()).size_limit))

    def _sizes(self, topics: Iterable[str]) -> dict[str, int]:
        try:
            configs = self.kafka.topic_configs(topics)
        except ConfigError:
            return {}  # the right DescribeConfigs is optional
        sizes = {topic: config.get("max.message.bytes") for topic, config in configs.items()}
        return {topic: int(size) for topic, size in sizes.items() if size is not None}
