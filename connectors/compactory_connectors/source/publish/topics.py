"""Topics that the source writes: created compacted, checked before anything is sent; and what is in them already."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping
from typing import Literal

import structlog
from confluent_kafka import KafkaException, Message, TopicPartition

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka, kafka_errors
from compactory.records import Partition

from ..config.topic_rules import TopicCreation

__all__ = ["OFFSETS_TOPIC", "ensure", "length", "read", "slices", "stored_values"]

OFFSETS_TOPIC = "compactory-offsets"
_OFFSETS_CONFIG = {"segment.bytes": str(16 << 20), "segment.ms": str(3_600_000)}  # read whole at each start: keep short
_RIGHTS = ("Read", "Write")
_KNOWN_WITHIN = 30.0  # seconds

log = structlog.get_logger("compactory.source")


def ensure(kafka: Kafka, topics: Mapping[str, TopicCreation], *, create: bool) -> list[str]:
    """Make sure that the topics and the offsets topic exist and are compacted; return warnings for people.

    ``topics`` maps a name to what it gets where it is created; only one whose ``cleanup.policy`` is given there need
    not be compacted. Raises ConfigError with every problem at once.
    """
    wanted = {OFFSETS_TOPIC: TopicCreation(partitions=1, configs=_OFFSETS_CONFIG), **topics}
    missing = sorted(wanted.keys() - kafka.topics(wanted).keys())
    present = [name for name in wanted if name not in missing]
    compacted = {name for name, creation in wanted.items() if creation.policy == "compact"}
    problems, warnings = _check(kafka, present, compacted)
    problems += kafka.lacking_rights(present, _RIGHTS)
    if not create:
        problems += [
            f"topic {name!r} does not exist; create it with cleanup.policy=compact, or run without --no-create-topics"
            for name in missing
        ]
    if problems:
        raise ConfigError(problems)
    for name in missing:
        creation = wanted[name]
        config = {"cleanup.policy": "compact", **creation.configs}
        if kafka.create_topic(
            name, partitions=creation.partitions, replication=creation.replication_factor, config=config
        ):
            log.info("topic created", topic=name)
    _wait_for(kafka, missing)
    if problems := kafka.lacking_rights(missing, _RIGHTS):
        raise ConfigError(problems)
    return warnings + _check(kafka, missing, compacted)[1]


def read(
    kafka: Kafka, topic: str, timeout: float = 60.0, *, partitions: Container[int] | None = None
) -> Iterator[Message]:
    """Every committed record of a topic up to its high watermarks of now; ``timeout`` bounds a stall, in seconds.

    ``partitions`` are the only ones to read, all by default.
    """
    for messages in slices(kafka, topic, timeout=timeout, profile="load", partitions=partitions):
        yield from messages


def slices(
    kafka: Kafka,
    topic: str,
    *,
    most: int = 10_000,
    pause: float = 0.2,
    timeout: float = 60.0,
    profile: Literal["load", "follow"] = "follow",
    partitions: Container[int] | None = None,
) -> Iterator[list[Message]]:
    """The same in slices of at most ``most`` records, each waited for no longer than ``pause`` seconds.

    The profile ``follow`` buffers little, ``load`` far ahead.
    """
    found = kafka.topics([topic])
    if topic not in found:
        raise ConfigError(f"topic {topic!r} does not exist")
    parts = [part for part in found[topic].all() if partitions is None or part.partition in partitions]
    ends = kafka.high_watermarks(parts)
    starts = kafka.log_starts(parts)
    left = {part: end for part, end in ends.items() if end > starts[part]}
    if not left:
        return
    consumer = kafka.consumer(profile)
    try:
        consumer.assign([TopicPartition(part.topic, part.partition, starts[part]) for part in left])
        deadline = time.monotonic() + timeout
        while left:
            with kafka_errors(f"read topic {topic!r}", kafka.bootstrap):
                messages = consumer.consume(most, pause)
                _drop_finished(left, messages)
            if messages:
                deadline = time.monotonic() + timeout
            yield [message for message in messages if message.error() is None]
            if time.monotonic() > deadline:
                raise Unreachable("Kafka", f"topic {topic!r} was not read to its end: {_behind(left)} still to go")
    except ConfigError as refused:
        raise ConfigError(kafka.lacking_rights([topic], ("Read",)) or refused.problems) from refused
    finally:
        consumer.close()


def length(kafka: Kafka, topic: str) -> int:
    """How many offsets its log has, which is at least as many as there are keys. Raises Unreachable."""
    found = kafka.topics([topic])
    partitions = found[topic].all() if topic in found else []
    starts = kafka.log_starts(partitions)
    return sum(end - starts.get(part, end) for part, end in kafka.high_watermarks(partitions).items())


def stored_values(kafka: Kafka) -> dict[bytes, bytes]:
    """The latest value of every key in the offsets topic."""
    found: dict[bytes, bytes] = {}
    for message in read(kafka, OFFSETS_TOPIC):
        key, value = message.key(), message.value()
        if isinstance(key, bytes):
            if isinstance(value, bytes):
                found[key] = value
            else:
                found.pop(key, None)
    return found


def _wait_for(kafka: Kafka, names: list[str]) -> None:
    """Wait until topics that were just made are known: a broker hears of them after the controller has answered."""
    deadline = time.monotonic() + _KNOWN_WITHIN
    while unknown := sorted(set(names) - kafka.topics(names).keys() if names else ()):
        if time.monotonic() > deadline:
            raise Unreachable(
                "Kafka", f"topics {', '.join(unknown)} were created, and are not known {_KNOWN_WITHIN:g} s later"
            )
        time.sleep(0.05)


def _check(kafka: Kafka, names: list[str], compacted: Container[str]) -> tuple[list[str], list[str]]:
    problems, warnings = [], []
    for name, config in (kafka.topic_configs(names) if names else {}).items():
        policy = config.get("cleanup.policy", "")
        if policy != "compact" and name in compacted:
            problems.append(
                f"topic {name!r} has cleanup.policy={policy}, so Kafka would drop rows of the directory by age or size;"
                f" remedy: kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --entity-type topics"
                f" --entity-name {name} --add-config cleanup.policy=compact"
            )
        if int(config.get("min.insync.replicas") or 1) < 2:
            warnings.append(
                f"topic {name!r} has min.insync.replicas below 2: a broker lost at the wrong moment takes"
                " acknowledged records along"
            )
    return problems, warnings


def _drop_finished(left: dict[Partition, int], messages: list[Message]) -> None:
    """Forget partitions that were read to their end; control records at the tail show only in an EOF event."""
    for message in messages:
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if topic is None or number is None or offset is None:
            continue
        part = Partition(topic, number)
        error = message.error()
        if error is None:
            offset += 1
        elif error.code() != error._PARTITION_EOF:  # noqa: SLF001 - the client's own name
            raise KafkaException(error)
        if part in left and offset >= left[part]:
            del left[part]


def _behind(left: Mapping[Partition, int]) -> str:
    return ", ".join(f"partition {part.partition} up to offset {end}" for part, end in left.items())
