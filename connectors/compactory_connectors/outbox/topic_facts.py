"""What the broker says of topics: whether they exist, how many partitions they have, how large a message may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

__all__ = ["TopicFacts", "TopicFailed"]

_FACTS_AGE = 60.0  # seconds


class TopicFailed(Exception):
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
        """The number of partitions. Raises TopicFailed where there is no such topic, ConfigError, Unreachable."""
        if time.monotonic() - self._asked.get(topic, -_FACTS_AGE) >= _FACTS_AGE:
            try:
                self._ask({topic, *self._waiting()}, tell_limits)
            except ConfigError:  # about any of them
                self._ask({topic}, tell_limits)
        if topic not in self._partitions:
            raise TopicFailed(f"topic {topic!r} does not exist on Kafka at {self._kafka.bootstrap}: create it")
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
