"""The ids of the messages in the last Kafka transaction of a topic: a record that the transaction itself has written.

The records are in a compacted topic, by database and topic. Each holder writes to one partition of it, so that a reader
of committed records waits only for the open transactions of few holders.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, Final

import orjson

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import read

__all__ = ["MARKS_TOPIC", "SentIds", "SentMarks"]

MARKS_TOPIC: Final = "compactory-outbox"

_PARTITIONS = 16
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": str(3_600_000)}  # is read whole
_TIMEOUT = 30.0  # seconds; Kafka aborts an abandoned transaction within 20


@dataclass(frozen=True, slots=True)
class SentIds:
    """Ids of messages in ascending order, and when the first was published, as Postgres writes it."""

    ids: list[int]
    created: str

    def packed(self) -> bytes:
        """Return the value of a record: the first id, and the distances between ids."""
        distances = orjson.dumps(list(map(sub, self.ids[1:], self.ids)))
        return b"%d|%s|%s" % (self.ids[0], self.created.encode(), zlib.compress(distances, 1))

    @classmethod
    def parse(cls, packed: bytes) -> SentIds:
        """Read what :meth:`packed` wrote. Raises ValueError."""
        first, created, compressed = packed.split(b"|", 2)
        distances = orjson.loads(zlib.decompress(compressed))
        return cls(list(accumulate(distances, initial=int(first))), created.decode())


@dataclass(slots=True)
class SentMarks:
    """Writes and reads the records of one database's outbox. Thread-safe."""

    kafka: Kafka
    identity: str

    def mark(self, producer: Any, holder: str, topic: str, sent: SentIds) -> None:
        """Write the ids of the open transaction of the holder's producer. Raises the client's errors."""
        producer.produce(MARKS_TOPIC, sent.packed(), self._key(topic), _partition(holder))

    def last(self, holder: str) -> dict[str, SentIds]:
        """Return by topic the ids of the last committed transaction of fenced holders in the holder's partition.

        Raises Unreachable, also if another holder's transaction stays open; ConfigError.
        """
        values: dict[str, bytes] = {}
        for message in read(self.kafka, MARKS_TOPIC, _TIMEOUT, partitions={_partition(holder)}):
            key, value = message.key(), message.value()
            database, _, topic = key.decode().partition(" ") if isinstance(key, bytes) else ("", "", "")
            if database == self.identity and isinstance(value, bytes):
                values[topic] = value
        return {topic: SentIds.parse(packed) for topic, packed in values.items()}

    def ensure(self) -> None:
        """Create the topic if it is missing. Raises ConfigError, Unreachable."""
        remedy = f"create topic {MARKS_TOPIC!r} with {_PARTITIONS} partitions and cleanup.policy=compact"
        topic = self.kafka.topics([MARKS_TOPIC]).get(MARKS_TOPIC)
        if topic is None:
            try:
                self.kafka.create_topic(MARKS_TOPIC, partitions=_PARTITIONS, config=_CONFIG)
            except ConfigError as error:
                raise ConfigError([*error.problems, f"or {remedy}"]) from error
        elif len(topic.partitions) < _PARTITIONS:
            raise ConfigError(
                f"topic {MARKS_TOPIC!r} has {len(topic.partitions)} partitions: stop all relays and {remedy}"
            )

    def _key(self, topic: str) -> bytes:
        return f"{self.identity} {topic}".encode()


def _partition(holder: str) -> int:
    return zlib.crc32(holder.encode()) % _PARTITIONS
