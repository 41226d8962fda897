"""Which messages the last Kafka transaction of a topic held: a record in Kafka, written by that very transaction.

The records lie in a compacted topic, under database and topic. A holder has one of its partitions: a reader of
committed records waits for every transaction that is open there, so that few share one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, Final

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.topic_reader import read

__all__ = ["MARKS_TOPIC", "SentIds", "SentMarks"]

MARKS_TOPIC: Final = "compactory-outbox"

_PARTITIONS = 16
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": str(3_600_000)}  # is read whole
_PATIENCE = 30.0  # seconds; Kafka ends an abandoned transaction within 20


@dataclass(frozen=True, slots=True)
class SentIds:
    """Ids of messages, ascending, and when the first was published, in Postgres' words."""

    ids: list[int]
    created: str

    def packed(self) -> bytes:
        """As a record's value: distances between ids."""
        distances = list(map(sub, self.ids[1:], self.ids))
        small = max(distances, default=0) < 128
        packed = bytes(distances) if small else b"".join(map(_varint, distances))
        return b"%d|%s|%s" % (self.ids[0], self.created.encode(), zlib.compress(packed, 1))

    @classmethod
    def parse(cls, packed: bytes) -> SentIds:
        """Read what :meth:`packed` wrote. Raises ValueError."""
        first, created, rest = packed.split(b"|", 2)
        distances = _varints(zlib.decompress(rest))
        return cls(list(accumulate(distances, initial=int(first))), created.decode())


class SentMarks:
    """The marks of one database's outbox. Thread-safe."""

    def __init__(self, kafka: Kafka, identity: str) -> None:
        self._kafka = kafka
        self._identity = identity

    def mark(self, producer: Any, holder: str, topic: str, sent: SentIds) -> None:
        """Add what the open transaction of this holder's producer holds. Raises what the client raises."""
        producer.produce(MARKS_TOPIC, sent.packed(), self._key(topic), _partition(holder))

    def last(self, holder: str) -> dict[str, SentIds]:
        """By topic, what the last committed transaction of the fenced holders that share its partition held.

        Raises Unreachable, also where another holder's transaction stays open; ConfigError.
        """
        found: dict[str, bytes] = {}
        for message in read(self._kafka, MARKS_TOPIC, _PATIENCE, partitions={_partition(holder)}):
            key, value = message.key(), message.value()
            database, _, topic = key.decode().partition(" ") if isinstance(key, bytes) else ("", "", "")
            if database == self._identity and isinstance(value, bytes):
                found[topic] = value
        return {topic: SentIds.parse(packed) for topic, packed in found.items()}

    def ensure(self) -> None:
        """Make the topic where it is missing. Raises ConfigError, Unreachable."""
        made = f"create topic {MARKS_TOPIC!r} with {_PARTITIONS} partitions and cleanup.policy=compact"
        known = self._kafka.topics([MARKS_TOPIC]).get(MARKS_TOPIC)
        if known is None:
            try:
                self._kafka.create_topic(MARKS_TOPIC, partitions=_PARTITIONS, config=_CONFIG)
            except ConfigError as error:
                raise ConfigError([*error.problems, f"or {made}"]) from error
        elif len(known.partitions) < _PARTITIONS:
            raise ConfigError(
                f"topic {MARKS_TOPIC!r} has {len(known.partitions)} partitions: stop all relays and {made}"
            )

    def _key(self, topic: str) -> bytes:
        return f"{self._identity} {topic}".encode()


def _partition(holder: str) -> int:
    return zlib.crc32(holder.encode()) % _PARTITIONS


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varints(packed: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in packed:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(number)
            number = shift = 0
    return found
