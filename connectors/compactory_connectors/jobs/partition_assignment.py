"""The partitions of an executor: assigned by a consumer group, or a share of all partitions.

An assignment says where a job *should* run. It is not what keeps a job or a group from running twice at once.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from typing import Any, Protocol

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.backoff import Interval
from compactory_connectors.kafka.consumer_group import Group

from .rows import Assigned

__all__ = ["PARTITIONS", "Assignment", "FollowedConsumer", "OwnConsumer", "Share"]

log = structlog.get_logger("compactory.jobs")

_ASK_EVERY = 0.2  # seconds; the assignment
_COUNT_EVERY = 10.0  # seconds; the number of partitions
_TIMEOUT = 5.0  # seconds for an answer of Kafka
_POOL_CHARACTERS = 200  # of the types in the name of a pool, which each heartbeat reads

PARTITIONS = 100
"""The number of partitions without a topic."""


class Assignment(Protocol):
    """The source of an executor's partitions."""

    @property
    def pool(self) -> str:
        """The name of the pool: the executors that divide the same partitions."""
        ...

    def start(self) -> None:
        """Start to follow the assignment. Raises ConfigError, Unreachable."""
        ...

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:
        """Return the current partitions; None: unknown or none. ``pool`` has the ids of the executors of the pool."""
        ...

    def stop(self) -> None:
        """Stop following. Idempotent."""
        ...


class Share:
    """An equal share: without Kafka the registered executors of a pool divide the partitions."""

    def __init__(self, types: Iterable[str]) -> None:
        self.pool = _pool_of(types)

    def start(self) -> None:
        pass

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:
        """Return every n-th partition, starting at the index of the executor in the pool."""
        if executor not in pool:
            return None
        return Assigned(tuple(range(pool.index(executor), PARTITIONS, len(pool))), PARTITIONS)

    def stop(self) -> None:
        pass


def _pool_of(types: Iterable[str]) -> str:
    """Return a name that only executors of the same types have: the types, or a digest where they are many."""
    names = json.dumps(sorted(types), ensure_ascii=False)
    if len(names) <= _POOL_CHARACTERS:
        return names
    return f"{names[:_POOL_CHARACTERS]}… {sha256(names.encode()).hexdigest()}"


class FollowedConsumer:
    """The assignment of a consumer that a service polls for its own messages.

    The consumer's callbacks report the assignment, in the thread that polls. They must not call the client: after
    such a call the next callback of the same poll aborts the process (confluent-kafka 2.16). A thread asks repeatedly
    for the number of partitions, and without callbacks for the assignment too. Calls of the client wait for each other:
    there is no answer while the consumer is polled without a pause. So :meth:`start` waits for the first answer.
    """

    def __init__(self, consumer: Consumer, topic: str | None = None) -> None:
        self.pool = f"topic {topic or '(that of its consumer)'}"
        self._consumer = consumer
        self._topic = topic
        self._lock = threading.Lock()  # guards the next two
        self._partitions: set[tuple[str, int]] = set()
        self._counts: dict[str, int] = {}
        self._counted_at = -math.inf  # by the monotonic clock
        self._has_callbacks = False
        self._has_asked = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compactory-jobs-follow", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._has_asked.wait(_TIMEOUT)

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:  # noqa: ARG002 - the group knows them
        with self._lock:
            assigned, counts = set(self._partitions), dict(self._counts)
        topics = {topic for topic, _ in assigned}
        if self._topic is None and len(topics) > 1:
            raise ConfigError(f"consumer reads {len(topics)} topics: name the topic that jobs follow with topic=")
        topic = self._topic or next(iter(topics), None)
        numbers = tuple(sorted(number for name, number in assigned if name == topic))
        return Assigned(numbers, counts[topic]) if numbers and topic in counts else None

    def add(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_callbacks = True
        with self._lock:
            self._partitions |= {(part.topic, part.partition) for part in partitions}
        self._counted_at = -math.inf

    def remove(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._lock:
            self._partitions -= {(part.topic, part.partition) for part in partitions}

    def stop(self) -> None:
        """Stop asking. The consumer stays open: its owner closes it."""
        self._stop.set()

    def ask(self) -> None:
        """Ask the client for what is due. Must not be called in a callback."""
        try:
            if not self._has_callbacks:
                assigned = {(part.topic, part.partition) for part in self._consumer.assignment()}
                with self._lock:
                    self._partitions = assigned
            if time.monotonic() > self._counted_at + _COUNT_EVERY:
                self._count()
        except KafkaException as error:
            log.warning("the consumer's assignment is not known", error=str(error))
        except RuntimeError:  # closed
            with self._lock:
                self._partitions.clear()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.ask()
            self._has_asked.set()
            self._stop.wait(_ASK_EVERY)

    def _count(self) -> None:
        """Ask for the number of partitions of the topics; of all topics before there is an assignment."""
        begun_at = time.monotonic()
        with self._lock:
            topics = {self._topic} if self._topic is not None else {topic for topic, _ in self._partitions}
        answers = [self._consumer.list_topics(name, timeout=_TIMEOUT) for name in topics or (None,)]
        counts = {name: len(topic.partitions) for answer in answers for name, topic in answer.topics.items()}
        with self._lock:
            self._counts |= {name: count for name, count in counts.items() if count}  # 0: it was deleted
            if self._counts.keys() >= {topic for topic, _ in self._partitions}:
                self._counted_at = begun_at


class OwnConsumer:
    """A consumer of the executor's own in a group. It reads nothing and has the partitions that the group assigns."""

    def __init__(self, kafka: str | Mapping[str, Any] | Kafka, group_id: str, topic: str) -> None:
        self.pool = f"group {group_id}"
        self._kafka = kafka if isinstance(kafka, Kafka) else Kafka(kafka)
        self._group_id, self._topic = group_id, topic
        self._assigned: Assigned | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="compactory-jobs-group", daemon=True)

    def start(self) -> None:
        """Join the group. Raises ConfigError if the topic does not exist, Unreachable."""
        if not self._kafka.topics([self._topic]):
            raise ConfigError(f"topic {self._topic!r} does not exist on Kafka at {self._kafka.bootstrap}: create it")
        self._group = Group(self._kafka, [self._topic], self._group_id, {})
        self._thread.start()

    def assigned(self, pool: Sequence[int], executor: int) -> Assigned | None:  # noqa: ARG002 - the group knows them
        return self._assigned

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _poll(self) -> None:
        partitions: tuple[int, ...] = ()
        counting = Interval(_COUNT_EVERY)
        with closing(self._group):
            while not self._stop.is_set():
                try:
                    self._group.poll(1, 0.1)
                    previous, partitions = partitions, tuple(sorted(part.partition for part in self._group.positions))
                    if not partitions:
                        self._assigned = None
                    elif partitions != previous or counting.is_over():
                        topic = self._kafka.topics([self._topic]).get(self._topic)
                        self._assigned = Assigned(partitions, len(topic.partitions)) if topic is not None else None
                except CompactoryError as error:
                    log.warning("the group is not followed", group=self._group_id, error=str(error))
                    partitions = ()
                    self._stop.wait(_ASK_EVERY)
