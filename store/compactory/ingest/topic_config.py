"""The configuration of topics as far as readers need it: how long deletions can be seen, and compaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from compactory.clock import clock
from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka

__all__ = ["TopicPolicies"]

log = logging.getLogger("compactory.store")

_DEFAULT_RETENTION = 86_400.0  # seconds: Kafka's default of delete.retention.ms
_LEAST_RETENTION = 10.0  # seconds; a shorter time would accuse a reader that follows well
_REFRESH = 60.0  # seconds


class TopicPolicies:
    """The configurations of topics, asked for once a minute, and warnings about them.

    Guarded by `Discovery`'s lock. Without the right to describe configurations, Kafka's defaults count.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._retentions: dict[str, float] = {}
        self._asked_at = float("-inf")
        self._warned: set[tuple[str, str]] = set()

    def retention(self, topic: str) -> float:
        """Return how long tombstones are kept at least, in seconds; never less than ten."""
        return max(self._retentions.get(topic, _DEFAULT_RETENTION), _LEAST_RETENTION)

    def refresh(self, topics: Iterable[str], timeout: float) -> None:
        """Ask for the configurations if the last answer is old. Raises Unreachable."""
        names = set(topics)
        if not names or (clock() - self._asked_at < _REFRESH and names <= self._retentions.keys()):
            return
        try:
            configs = self._kafka.topic_configs(names, timeout)
        except ConfigError as error:  # no right to ask, or one broker's certificate is wrong
            configs, names = {}, names - self._retentions.keys()
            self._warn("*", f"delete.retention.ms is taken for a day where it is not known yet: {error}")
        except CompactoryError:
            if clock() - self._asked_at > _REFRESH * 2:
                raise
            return
        self._asked_at = clock()
        for name in names:
            self._note(name, configs.get(name, {}))

    def _note(self, topic: str, config: dict[str, str]) -> None:
        retention = float(config.get("delete.retention.ms", _DEFAULT_RETENTION * 1000)) / 1000
        self._retentions[topic] = retention
        policy = config.get("cleanup.policy", "compact")
        if policy != "compact":
            self._warn(
                topic,
                f"cleanup.policy={policy}: Kafka also drops entries by age or size, so that a store that starts later "
                "does not find them; set cleanup.policy=compact",
            )
        if retention < _LEAST_RETENTION:
            self._warn(
                topic,
                f"delete.retention.ms={retention * 1000:.0f}: a reader that falls behind for longer than that can miss "
                f"deletions, and less than {_LEAST_RETENTION:g} s can't be told; the default is a day",
            )

    def _warn(self, topic: str, text: str) -> None:
        if (topic, text) not in self._warned:
            self._warned.add((topic, text))
            log.warning("topic %s: %s", topic, text)
