"""Which messages the last Kafka transaction of a topic held: kept in Kafka, written by that very transaction.

They are the metadata of a consumer group's offset, a group for each topic, at partition 0 of a topic without records.
Kafka answers for one group in milliseconds, whatever other transactions are open, and keeps one answer for each. It
forgets a group after ``offsets.retention.minutes`` (7 days) without a message sent.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Any, Final

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka, TopicPartition, kafka_errors

__all__ = ["MARKS_TOPIC", "SentIds", "SentMarks", "fitting"]

MARKS_TOPIC: Final = "compactory-outbox"
"""A topic that stays empty; groups have their offsets there."""

MOST: Final = 4000
"""Characters of metadata: brokers take 4,096 (``offset.metadata.max.bytes``)."""


@dataclass(frozen=True, slots=True)
class SentIds:
    """Ids of messages, ascending, and when the first was published, in Postgres' words."""

    ids: list[int]
    created: str

    def text(self) -> str:
        """As metadata: distances between ids, packed."""
        distances = list(map(sub, self.ids[1:], self.ids))
        small = max(distances, default=0) < 128
        packed = bytes(distances) if small else b"".join(map(_varint, distances))
        return f"{self.ids[0]}|{self.created}|{base64.b64encode(zlib.compress(packed, 1)).decode()}"

    @classmethod
    def parse(cls, text: str) -> SentIds:
        """Read what :meth:`text` wrote. Raises ValueError."""
        first, created, packed = text.split("|")
        distances = _varints(zlib.decompress(base64.b64decode(packed)))
        return cls(list(accumulate(distances, initial=int(first))), created)


def fitting(ids: Sequence[int], created: str) -> tuple[int, str]:
    """How many of these messages one offset can hold, and its metadata."""
    number = len(ids)
    while True:
        text = SentIds(list(ids[:number]), created).text()
        if len(text) <= MOST:
            return number, text
        number = max(1, int(number * 0.9 * MOST / len(text)))


class SentMarks:
    """The marks of one database's outbox. Owned by one thread."""

    def __init__(self, kafka: Kafka, identity: str) -> None:
        self._kafka = kafka
        self._identity = identity
        self._groups: dict[str, Any] = {}

    def mark(self, producer: Any, topic: str, text: str, timeout: float) -> None:
        """Write what the open transaction of this producer holds. Raises what the client raises."""
        if topic not in self._groups:
            with closing(self._consumer(topic)) as consumer:
                self._groups[topic] = consumer.consumer_group_metadata()
        place = TopicPartition(MARKS_TOPIC, 0, 0, text)
        producer.send_offsets_to_transaction([place], self._groups[topic], timeout)

    def last(self, topic: str, timeout: float = 10.0) -> SentIds | None:
        """What the last committed transaction held, once nothing of the topic is open.

        Raises Unreachable, ConfigError.
        """
        needed = f"the ACL operation Read on groups {self._group('')}…"
        with (
            closing(self._consumer(topic)) as consumer,
            kafka_errors(f"ask what was sent of {topic!r} ({needed})", self._kafka.bootstrap),
        ):
            (found,) = consumer.committed([TopicPartition(MARKS_TOPIC, 0)], timeout)
        return SentIds.parse(found.metadata) if found.metadata else None

    def ensure(self) -> None:
        """Make the empty topic where it is missing. Raises ConfigError, Unreachable."""
        if MARKS_TOPIC in self._kafka.topics([MARKS_TOPIC]):
            return
        try:
            self._kafka.create_topic(MARKS_TOPIC, partitions=1)
        except ConfigError as error:
            raise ConfigError(
                [*error.problems, f"or create topic {MARKS_TOPIC!r} with one partition, which stays empty"]
            ) from error

    def _consumer(self, topic: str) -> Any:
        return self._kafka.consumer("follow", group=self._group(topic))

    def _group(self, topic: str) -> str:
        return f"{MARKS_TOPIC}-{self._identity}-{topic}"


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
