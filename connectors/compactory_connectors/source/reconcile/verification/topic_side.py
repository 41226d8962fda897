"""A topic's committed records up to its end, and on from there: read in one go or a stretch at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Consumer, Kafka, KafkaError, KafkaException, Message, TopicPartition, kafka_errors
from compactory.records import Partition

__all__ = ["TopicSide"]

_STALL = 60.0  # seconds without a record after which a partition is given up; an abandoned transaction takes 10


class TopicSide:
    """Reads one topic. Owned by one thread; a context manager. Raises Unreachable and ConfigError."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        found = kafka.topics([topic])
        if topic not in found:
            raise ConfigError(f"topic {topic!r} does not exist; a source makes it when it runs")
        self.topic = topic
        self.partitions = found[topic].all()
        self._kafka = kafka
        self._consumer: Consumer | None = None
        self.positions: dict[Partition, int] = {}
        """Up to where it was read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def ends(self) -> dict[Partition, int]:
        """The high watermarks of now."""
        return self._kafka.high_watermarks(self.partitions)

    def rewind(self) -> None:
        """Read from the beginning of the log again."""
        self.positions = self._kafka.log_starts(self.partitions)
        self.close()

    def read_to(self, ends: Mapping[Partition, int]) -> Iterator[list[Message]]:
        """Committed records that have keys, from where it stands up to these offsets."""
        left = {part: end for part, end in ends.items() if end > self.positions[part]}
        if not left:
            return
        consumer = self._assigned()
        deadline = time.monotonic() + _STALL
        while left:
            with kafka_errors(f"read topic {self.topic!r}", self._kafka.bootstrap):
                messages = consumer.consume(10_000, 0.1)
                records = self._passed(messages)
            if messages:
                deadline = time.monotonic() + _STALL
            left = {part: end for part, end in left.items() if end > self.positions[part]}
            if records:
                yield records
            if left and time.monotonic() > deadline:
                behind = ", ".join(f"partition {part.partition} up to offset {end}" for part, end in left.items())
                raise Unreachable("Kafka", f"topic {self.topic!r} was not read to its end: {behind} still to go")

    def _assigned(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._kafka.consumer("load")
            self._consumer.assign(
                [TopicPartition(part.topic, part.partition, at) for part, at in self.positions.items()]
            )
        return self._consumer

    def _passed(self, messages: list[Message]) -> list[Message]:
        """The records among messages; positions go on. Control records at the tail show only in an EOF event."""
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's own name
                raise KafkaException(error)
            number, offset = message.partition(), message.offset()
            if number is None or offset is None:
                continue
            self.positions[Partition(self.topic, number)] = offset + (error is None)
            if error is None and message.key() is not None:
                records.append(message)
        return records
