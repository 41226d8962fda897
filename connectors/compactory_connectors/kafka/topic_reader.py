"""Reads the committed records of a topic, all of them or some of its partitions, without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping
from typing import Literal, Self

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Consumer, Kafka, KafkaError, KafkaException, Message, TopicPartition, kafka_errors

__all__ = ["TopicReader", "length", "newest_records", "read"]

_STALL = 60.0  # seconds without a record after which a topic is given up; an abandoned transaction takes 10


class TopicReader:
    """Reads a topic's committed records from the beginning of its log. Owned by one thread; a context manager.

    With ``ahead`` it buffers far ahead, else little. ``partitions`` are the only ones to read, all by default. It gives
    up after ``stall`` seconds without a record. Raises ConfigError and Unreachable.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        *,
        ahead: bool = True,
        partitions: Container[int] | None = None,
        stall: float = _STALL,
    ) -> None:
        found = kafka.topics([topic])
        if topic not in found:
            where = f"topic {topic!r} does not exist on Kafka at {kafka.bootstrap}"
            raise ConfigError(f"{where}: check its name; a source creates the topic of a table when it runs")
        self.topic = topic
        self.partitions = [part for part in found[topic].all() if partitions is None or part.partition in partitions]
        self._kafka = kafka
        self._stall = stall
        self._profile: Literal["load", "follow"] = "load" if ahead else "follow"
        self._consumer: Consumer | None = None
        self._positions: dict[int, int] = {}
        self.rewind()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def ends(self) -> dict[int, int]:
        """The high watermarks of now, by partition."""
        return {part.partition: end for part, end in self._kafka.high_watermarks(self.partitions).items()}

    def rewind(self) -> None:
        """Read from the beginning of the log again."""
        self._positions = {part.partition: start for part, start in self._kafka.log_starts(self.partitions).items()}
        self.close()

    def read_to(self, ends: Mapping[int, int], *, most: int = 10_000, pause: float = 0.1) -> Iterator[list[Message]]:
        """The records from the current positions up to these offsets, in lists of at most ``most``.

        Each list is waited for no longer than ``pause`` seconds, and may be empty.
        """
        waited = 0.0  # seconds in this loop without a message; the time of the caller does not count
        while left := {part: end for part, end in ends.items() if end > self._positions[part]}:
            began = time.monotonic()
            messages, records = self._consume(most, pause)
            waited = 0.0 if messages else waited + time.monotonic() - began
            if waited > self._stall:
                behind = ", ".join(f"partition {part} up to offset {end}" for part, end in left.items())
                raise Unreachable("Kafka", f"topic {self.topic!r} was not read to its end: {behind} still to go")
            yield records

    def _consume(self, most: int, pause: float) -> tuple[list[Message], list[Message]]:
        """The messages that came, and the records among them."""
        try:
            with kafka_errors(f"read topic {self.topic!r}", self._kafka.bootstrap):
                messages = self._assigned().consume(most, pause)
                return messages, [message for message in messages if self._passed(message)]
        except ConfigError as refused:
            raise ConfigError(self._kafka.lacking_rights([self.topic], ("Read",)) or refused.problems) from refused

    def _assigned(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._kafka.consumer(self._profile)
            self._consumer.assign([TopicPartition(self.topic, part, at) for part, at in self._positions.items()])
        return self._consumer

    def _passed(self, message: Message) -> bool:
        """Go on behind a message; whether it is a record. Control records at the tail show only in an EOF event."""
        error, part, offset = message.error(), message.partition(), message.offset()
        if message.topic() is None or part is None or offset is None:
            return False  # about the client: it looks for the coordinator of a group although it needs none
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's own name
            raise KafkaException(error)
        self._positions[part] = offset + (error is None)
        return error is None


def read(
    kafka: Kafka, topic: str, stall: float = _STALL, *, partitions: Container[int] | None = None
) -> Iterator[Message]:
    """Every committed record of a topic up to its high watermarks of now; see `TopicReader`."""
    with TopicReader(kafka, topic, partitions=partitions, stall=stall) as reader:
        for messages in reader.read_to(reader.ends()):
            yield from messages


def length(kafka: Kafka, topic: str) -> int:
    """How many offsets its log has, which is at least as many as there are keys. Raises Unreachable."""
    found = kafka.topics([topic])
    partitions = found[topic].all() if topic in found else []
    starts = kafka.log_starts(partitions)
    return sum(end - starts.get(part, end) for part, end in kafka.high_watermarks(partitions).items())


def newest_records(kafka: Kafka, topic: str) -> dict[bytes, Message]:
    """The latest record of every key in a topic."""
    return {key: message for message in read(kafka, topic) if isinstance(key := message.key(), bytes)}
