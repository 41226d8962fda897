"""Facts about topics from the broker: whether they exist, how many partitions they have, how large a message may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

__all__ = ["TopicFacts", "TopicFailed"]

TellLimits: TypeAlias = Callable[[Mapping[str, int]], None]

_FACTS_AGE = 60.0  # seconds
_ABSENCE_AGE = 1.0  # seconds


class TopicFailed(Exception):
    """Nothing can be sent to the topic for now; nothing of it is open."""


class TopicFacts:
    """Facts about topics from the broker, kept for a minute; that a topic is missing, for a second. Thread-safe.

    ``waiting`` are topics that are asked about along with one, as a request for each takes longer than a small batch.
    """

    def __init__(self, kafka: Kafka, waiting: Callable[[], Iterable[str]] = tuple) -> None:
        self._kafka = kafka
        self._waiting = waiting
        self._lock = threading.Lock()  # guards the next three; who waits for it finds what another has asked
        self._asked: dict[str, float] = {}
        self._absent: dict[str, float] = {}  # topics that the broker did not have
        self._partitions: dict[str, int] = {}

    def look(self, topic: str, tell_limits: TellLimits | None = None) -> int:
        """Return the number of partitions. Raises TopicFailed where there is no such topic, ConfigError, Unreachable.

        ``tell_limits`` is told how many bytes a message of each topic may have that was asked about.
        """
        with self._lock:
            if time.monotonic() - self._asked.get(topic, -_FACTS_AGE) >= _FACTS_AGE:
                self._ask_with_others(topic, tell_limits)
            if topic not in self._partitions:
                raise TopicFailed(f"topic {topic!r} does not exist on Kafka at {self._kafka.bootstrap}: create it")
            return self._partitions[topic]

    def exists(self, topic: str) -> bool:
        """Return True if the broker has the topic or may not show it; asks it once a second. Raises Unreachable."""
        with self._lock:
            if time.monotonic() - self._absent.get(topic, -_ABSENCE_AGE) < _ABSENCE_AGE:
                return False
            try:
                self._ask_with_others(topic, None)
            except ConfigError:
                return True
            return topic in self._partitions

    def _ask_with_others(self, topic: str, tell_limits: TellLimits | None) -> None:
        try:
            self._ask({topic, *self._waiting()}, tell_limits)
        except ConfigError:  # about any of them
            self._ask({topic}, tell_limits)

    def _ask(self, topics: set[str], tell_limits: TellLimits | None) -> None:
        found = self._kafka.topics(topics)
        missing = topics - found.keys()
        for topic in missing:
            self._partitions.pop(topic, None)
            self._asked.pop(topic, None)
        self._absent |= dict.fromkeys(missing, time.monotonic())
        if found and tell_limits is not None:
            tell_limits(self._sizes(found))
        self._partitions |= {name: len(facts.partitions) for name, facts in found.items()}
        self._asked |= dict.fromkeys(found, time.monotonic())

    def _sizes(self, topics: Iterable[str]) -> dict[str, int]:
        try:
            configs = self._kafka.topic_configs(topics)
        except ConfigError:
            return {}  # needs DescribeConfigs, which a relay can do without
        sizes = {topic: config.get("max.message.bytes") for topic, config in configs.items()}
        return {topic: int(size) for topic, size in sizes.items() if size is not None}
