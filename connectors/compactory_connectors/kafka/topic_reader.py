"""Reads the committed records of a topic, all of them or some of its partitions, without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping
from contextlib import closing
from typing import Literal, Self

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Consumer, Kafka, KafkaError, KafkaException, Message, TopicPartition, kafka_errors
from compactory.records import Partition

__all__ = ["TopicReader", "length", "newest_rank", "newest_records", "read", "records_at"]

_STALL = 60.0  # seconds without a record after which a topic is given up; an abandoned transaction takes 10


class TopicReader:
    """Reads the committed records of a topic from the beginning of its log. Owned by one thread; a context manager.

    ``large_buffer``: fetch far ahead, for a topic that is read whole. ``partitions``: read these only; None: all.
    Raises ConfigError if the topic is missing or may not be read, Unreachable after ``stall`` seconds without a record.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        *,
        large_buffer: bool = True,
        partitions: Container[int] | None = None,
        stall: float = _STALL,
    ) -> None:
        topics = kafka.topics([topic])
        if topic not in topics:
            where = f"topic {topic!r} does not exist on Kafka at {kafka.bootstrap}"
            raise ConfigError(f"{where}: check its name; a source creates the topic of a table when it runs")
        self.topic = topic
        self.partitions = [part for part in topics[topic].all() if partitions is None or part.partition in partitions]
        self._kafka = kafka
        self._stall = stall
        self._profile: Literal["load", "follow"] = "load" if large_buffer else "follow"
        self._consumer: Consumer | None = None
        self._positions: dict[int, int] = {}
        self.rewind()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer. Idempotent."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def ends(self) -> dict[int, int]:
        """Return the current high watermark of each partition. Raises Unreachable."""
        return {part.partition: end for part, end in self._kafka.high_watermarks(self.partitions).items()}

    def rewind(self) -> None:
        """Start again at the beginning of the log. Raises Unreachable."""
        self._positions = {part.partition: start for part, start in self._kafka.log_starts(self.partitions).items()}
        self.close()

    def read_to(self, ends: Mapping[int, int], *, limit: int = 10_000, pause: float = 0.1) -> Iterator[list[Message]]:
        """Yield the records from the current positions up to the offsets ``ends``, in lists of at most ``limit``.

        Waits at most ``pause`` seconds for each list. A list may be empty.
        """
        waited = 0.0  # seconds in this loop without a message; the time of the caller does not count
        while remaining := {part: end for part, end in ends.items() if end > self._positions[part]}:
            began = time.monotonic()
            messages, records = self._consume(limit, pause)
            waited = 0.0 if messages else waited + time.monotonic() - began
            if waited > self._stall:
                missing = ", ".join(f"partition {part} up to offset {end}" for part, end in remaining.items())
                raise Unreachable("Kafka", f"topic {self.topic!r} was not read to its end: {missing} still to go")
            yield records

    def _consume(self, limit: int, pause: float) -> tuple[list[Message], list[Message]]:
        """Return the messages that were received, and the records among them."""
        try:
            with kafka_errors(f"read topic {self.topic!r}", self._kafka.bootstrap):
                messages = self._assigned().consume(limit, pause)
                return messages, [message for message in messages if self._advance(message)]
        except ConfigError as refused:
            raise ConfigError(self._kafka.lacking_rights([self.topic], ("Read",)) or refused.problems) from refused

    def _assigned(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._kafka.consumer(self._profile)
            self._consumer.assign([TopicPartition(self.topic, part, at) for part, at in self._positions.items()])
        return self._consumer

    def _advance(self, message: Message) -> bool:
        """Set the position after a message; return True if it is a record. EOF events skip control records."""
        error, part, offset = message.error(), message.partition(), message.offset()
        if message.topic() is None or part is None or offset is None:
            return False  # an error of the client itself: it looks for a group coordinator that it does not need
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's own name
            raise KafkaException(error)
        self._positions[part] = offset + (error is None)
        return error is None


def read(
    kafka: Kafka, topic: str, stall: float = _STALL, *, partitions: Container[int] | None = None
) -> Iterator[Message]:
    """Yield every committed record of a topic up to its current high watermarks; see `TopicReader`."""
    with TopicReader(kafka, topic, partitions=partitions, stall=stall) as reader:
        for messages in reader.read_to(reader.ends()):
            yield from messages


def records_at(kafka: Kafka, offsets: Mapping[Partition, int], timeout: float = 5.0) -> dict[Partition, Message]:
    """Return the first record at or after an offset of each partition that has one. Raises ConfigError, Unreachable."""
    records: dict[Partition, Message] = {}
    remaining = set(offsets)
    deadline = time.monotonic() + timeout
    with kafka_errors("read records", kafka.bootstrap), closing(kafka.consumer("follow")) as consumer:
        consumer.assign([TopicPartition(*partition, offset) for partition, offset in offsets.items()])
        while remaining:
            for message in consumer.consume(1, 0.2):
                partition = Partition(message.topic() or "", message.partition() or 0)
                if message.error() is None and partition in remaining:
                    records[partition] = message
                    consumer.pause([TopicPartition(*partition)])
                if message.topic() is not None:
                    remaining.discard(partition)
            if time.monotonic() > deadline:
                names = ", ".join(f"{part.topic}-{part.partition}" for part in remaining)
                raise Unreachable("Kafka", f"{names} not read in {timeout:g} s")
    return records


def length(kafka: Kafka, topic: str) -> int:
    """Return the number of offsets in the log of a topic: at least the number of its keys. Raises Unreachable."""
    topics = kafka.topics([topic])
    partitions = topics[topic].all() if topic in topics else []
    starts = kafka.log_starts(partitions)
    return sum(end - starts.get(part, end) for part, end in kafka.high_watermarks(partitions).items())


def newest_rank(timestamp_ms: int, partition: int) -> tuple[int, int]:
    """Return the rank of a key's record among several partitions: lookups find the one with the highest."""
    return timestamp_ms, partition


def newest_records(kafka: Kafka, topic: str, keys: Container[bytes] | None = None) -> dict[bytes, Message]:
    """Return the newest record of every key of a topic, or only of ``keys``. Raises as `TopicReader` does."""
    newest: dict[bytes, Message] = {}
    for message in read(kafka, topic):
        key = message.key()
        if not isinstance(key, bytes) or not (keys is None or key in keys):
            continue
        former = newest.get(key)
        if former is None or former.partition() == message.partition() or _rank(message) > _rank(former):
            newest[key] = message
    return newest


def _rank(message: Message) -> tuple[int, int]:
    return newest_rank(message.timestamp()[1], message.partition() or 0)
