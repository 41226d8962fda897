"""Which partitions an executor runs jobs of: those that a consumer group gives it, or its share of all executors.

An assignment says where a job *should* run. That no job and no group runs twice at once does not depend on it.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka, kafka_errors
from compactory_connectors.kafka.consumer_group import group_properties

from .statements import Assigned

__all__ = ["PARTITIONS", "Assignment", "FollowedConsumer", "OwnConsumer", "Share"]

log = structlog.get_logger("compactory.jobs")

_ASK = 0.2  # seconds between questions
_COUNT = 10.0  # and between those about the number of partitions
_ANSWER = 5.0  # for an answer
_POOL_CHARACTERS = 200  # of the types in the name of a pool, which each heartbeat reads

PARTITIONS = 100
"""Partitions where no topic says how many there are."""


class Assignment(Protocol):
    """Where an executor's partitions come from."""

    @property
    def pool(self) -> str:
        """A name that executors share when they divide the same partitions among them."""
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
        self.pool = _pool_of(types)

    def start(self) -> None:
        """Nothing to do."""

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:
        """Every n-th partition, by the place of its id among those of the pool."""
        if executor not in pool:
            return None
        return Assigned(tuple(range(pool.index(executor), PARTITIONS, len(pool))), PARTITIONS)

    def stop(self) -> None:
        """Nothing to do."""


def _pool_of(types: Iterable[str]) -> str:
    """Return a name that only executors of the same types have: the types, or a digest where they are many."""
    names = json.dumps(sorted(types), ensure_ascii=False)
    if len(names) <= _POOL_CHARACTERS:
        return names
    return f"{names[:_POOL_CHARACTERS]}… {sha256(names.encode()).hexdigest()}"


class FollowedConsumer:
    """The assignment of a consumer that a service polls for its own messages.

    Callbacks tell it, in the thread that polls. They ask the client nothing: after a call within a callback, the next
    callback of the same poll aborts the process (confluent-kafka 2.16). A thread asks how many partitions a topic has,
    again and again, as a topic may be given more, and without callbacks for the assignment as well. Calls of the client
    wait for each other. So there is no answer while the consumer is polled without a pause, and the first question is
    asked before :meth:`start` returns.
    """

    def __init__(self, consumer: Consumer, topic: str | None = None) -> None:
        self._consumer = consumer
        self._topic = topic
        self._lock = threading.Lock()  # guards the next two
        self._given: set[tuple[str, int]] = set()
        self._counts: dict[str, int] = {}
        self._counted = -math.inf  # time.monotonic()
        self._told = False  # by callbacks
        self._asked = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="compactory-jobs-follow", daemon=True)

    @property
    def pool(self) -> str:
        """Of this topic's consumers."""
        return f"topic {self._topic or '(that of its consumer)'}"

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()
        self._asked.wait(_ANSWER)

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:  # noqa: ARG002 - the group knows them
        """The partitions that the group gave it. Raises ConfigError for several topics."""
        with self._lock:
            given, counts = set(self._given), dict(self._counts)
        topics = {topic for topic, _ in given}
        if self._topic is None and len(topics) > 1:
            raise ConfigError(f"consumer: it reads {len(topics)} topics: name the one that jobs follow by topic=")
        topic = self._topic or next(iter(topics), None)
        numbers = tuple(sorted(number for name, number in given if name == topic))
        return Assigned(numbers, counts[topic]) if numbers and topic in counts else None

    def add(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The group gave it these."""
        self._told = True
        with self._lock:
            self._given |= {(part.topic, part.partition) for part in partitions}
        self._counted = -math.inf

    def remove(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The group took these away."""
        with self._lock:
            self._given -= {(part.topic, part.partition) for part in partitions}

    def stop(self) -> None:
        """The consumer is its owner's."""
        self._stop.set()

    def look(self) -> None:
        """Ask for what is due. Not within a callback."""
        try:
            if not self._told:
                given = {(part.topic, part.partition) for part in self._consumer.assignment()}
                with self._lock:
                    self._given = given
            if time.monotonic() > self._counted + _COUNT:
                self._count()
        except KafkaException as error:
            log.warning("the consumer's assignment is not known", error=str(error))
        except RuntimeError:  # closed
            with self._lock:
                self._given.clear()

    def _ask(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._asked.set()
            self._stop.wait(_ASK)

    def _count(self) -> None:
        """Ask how many partitions the topics have; all topics before there is an assignment."""
        began = time.monotonic()
        with self._lock:
            topics = {self._topic} if self._topic is not None else {topic for topic, _ in self._given}
        answers = [self._consumer.list_topics(name, timeout=_ANSWER) for name in topics or (None,)]
        counts = {name: len(topic.partitions) for answer in answers for name, topic in answer.topics.items()}
        with self._lock:
            self._counts |= {name: count for name, count in counts.items() if count}  # 0: it was deleted
            if self._counts.keys() >= {topic for topic, _ in self._given}:
                self._counted = began


class OwnConsumer:
    """A consumer of its own in a group: it reads nothing, and has the partitions that the group gives it."""

    def __init__(self, kafka: str | Mapping[str, Any] | Kafka, group_id: str, topic: str) -> None:
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._group_id, self._topic = group_id, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="compactory-jobs-group", daemon=True)
        self._consumer: Consumer | None = None
        self._followed: FollowedConsumer | None = None  # told by callbacks

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
            "auto.offset.reset": "latest",
            **group_properties(self._kafka.properties()),
        }
        with kafka_errors("join a group", self._kafka.bootstrap, lambda: None):
            self._consumer = Consumer(self._kafka.properties(**own))
            followed = FollowedConsumer(self._consumer, self._topic)
            self._consumer.subscribe(
                [self._topic], on_assign=self._joined, on_revoke=followed.remove, on_lost=followed.remove
            )
        self._followed = followed
        self._thread.start()

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:
        """The partitions that the group gave it."""
        return self._followed.assigned(pool, executor) if self._followed is not None else None

    def stop(self) -> None:
        """Leave the group."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _joined(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert self._followed is not None
        self._followed.add(consumer, partitions)
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)

    def _poll(self) -> None:
        assert self._consumer is not None
        assert self._followed is not None
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            self._followed.look()
            error = message.error() if message is not None else None
            if error is not None:
                log.warning("the group is not followed", group=self._group_id, error=error.str())
        self._consumer.close()
