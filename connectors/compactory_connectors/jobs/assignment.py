"""Which partitions an executor runs jobs of: those that a consumer group gives it, or its share of all executors.

An assignment says where a job *should* run. That no job and no group runs twice at once does not depend on it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka, kafka_errors

from .table import Assigned

__all__ = ["PARTITIONS", "Assignment", "FollowedConsumer", "OwnConsumer", "Share"]

log = structlog.get_logger("compactory.jobs")

PARTITIONS = 100
"""Partitions where no topic says how many there are."""


class Assignment(Protocol):
    """Where an executor's partitions come from."""

    @property
    def pool(self) -> str:
        """Names those who divide the partitions among them."""
        ...

    def start(self) -> None:
        """Begin to follow. Raises ConfigError, Unreachable."""
        ...

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:
        """The partitions of now, in none of which is None; ``pool`` has the ids of all executors of the pool."""
        ...

    def stop(self) -> None:
        """Let go. Idempotent."""
        ...


class Share:
    """Without Kafka: the executors of a pool, which renew their leases in Postgres, divide the partitions evenly."""

    def __init__(self, types: Iterable[str]) -> None:
        self.pool = ",".join(sorted(types))[:1000]

    def start(self) -> None:
        """Nothing to do."""

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:
        """Every n-th partition, by the place of its id among those of the pool."""
        if executor not in pool:
            return None
        return Assigned(tuple(range(pool.index(executor), PARTITIONS, len(pool))), PARTITIONS)

    def stop(self) -> None:
        """Nothing to do."""


class FollowedConsumer:
    """The assignment of a consumer that a service polls for its own messages."""

    def __init__(self, consumer: Consumer, topic: str | None = None) -> None:
        self._consumer = consumer
        self._topic = topic
        self._counts: dict[str, int] = {}
        self._before: list[TopicPartition] = []

    @property
    def pool(self) -> str:
        """Of this topic's consumers."""
        return f"topic {self._topic or '(that of its consumer)'}"

    def start(self) -> None:
        """Check that the consumer belongs to a group. Raises ConfigError."""
        try:
            self._consumer.assignment()
            self._consumer.consumer_group_metadata()
        except (KafkaException, RuntimeError) as error:
            raise ConfigError(
                f"consumer: it has no assignment to follow ({error}): give one that has a group.id and is open"
            ) from None

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:  # noqa: ARG002 - the group knows them
        """What the group gave it."""
        try:
            given = self._consumer.assignment()
        except (KafkaException, RuntimeError):  # closed
            return None
        topics = {part.topic for part in given}
        if self._topic is None and len(topics) > 1:
            raise ConfigError(f"consumer: it reads {len(topics)} topics: name the one that jobs follow by topic=")
        topic = self._topic or next(iter(topics), None)
        numbers = tuple(sorted(part.partition for part in given if part.topic == topic))
        if topic is None or not numbers:
            return None
        return Assigned(numbers, self._count(topic, given))

    def stop(self) -> None:
        """The consumer is its owner's."""

    def _count(self, topic: str, given: list[TopicPartition]) -> int:
        if given != self._before or topic not in self._counts:
            found = self._consumer.list_topics(topic, timeout=5.0).topics[topic].partitions
            self._counts[topic], self._before = len(found), given
        return self._counts[topic]


class OwnConsumer:
    """A consumer of its own in a group: it reads nothing, and has the partitions that the group gives it."""

    def __init__(self, kafka: str | Mapping[str, Any] | Kafka, group_id: str, topic: str) -> None:
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._group_id, self._topic = group_id, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="compactory-jobs-group", daemon=True)
        self._consumer: Consumer | None = None
        self._followed: FollowedConsumer | None = None

    @property
    def pool(self) -> str:
        """Of this group."""
        return f"group {self._group_id}"

    def start(self) -> None:
        """Join the group. Raises ConfigError where the topic does not exist, Unreachable."""
        if not self._kafka.topics([self._topic]):
            raise ConfigError(f"topic {self._topic!r} does not exist on Kafka at {self._kafka.bootstrap}: create it")
        own = {
            "group.id": self._group_id,
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "latest",
        }
        with kafka_errors("join a group", self._kafka.bootstrap, lambda: None):
            self._consumer = Consumer(self._kafka.properties(**own))
            self._consumer.subscribe([self._topic], on_assign=self._joined)
        self._followed = FollowedConsumer(self._consumer, self._topic)
        self._thread.start()

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:
        """What the group gave it."""
        try:
            return self._followed.assigned(pool, executor) if self._followed is not None else None
        except KafkaException as error:
            raise Unreachable("Kafka", f"Kafka at {self._kafka.bootstrap}: {error}") from error

    def stop(self) -> None:
        """Leave the group."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _joined(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)

    def _poll(self) -> None:
        assert self._consumer is not None
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            error = message.error() if message is not None else None
            if error is not None:
                log.warning("the group is not followed", group=self._group_id, error=error.str())
        self._consumer.close()
