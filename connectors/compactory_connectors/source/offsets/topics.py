"""The topics that a source writes: created compacted, and checked before use; the offsets topic."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping

import structlog

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher, PublishLease
from compactory_connectors.kafka.topic_reader import newest_records

from ..config.connector import ConnectorConfig, TopicCreation

__all__ = ["OFFSETS_TOPIC", "ensure_topics", "publisher_of", "stored_values"]

OFFSETS_TOPIC = "compactory-offsets"
_OFFSETS_CONFIG = {
    "segment.bytes": str(16 << 20),
    "segment.ms": str(3_600_000),
}  # a start reads the topic whole: keep it short
_RIGHTS = ("Read", "Write")
_CREATION_TIMEOUT = 30.0  # seconds

log = structlog.get_logger("compactory.source")


def ensure_topics(kafka: Kafka, topics: Mapping[str, TopicCreation], *, create: bool) -> list[str]:
    """Make sure that the topics and the offsets topic exist and are compacted; return warnings for people.

    ``topics`` maps a name to how it is created; a topic whose ``cleanup.policy`` is set there need not be compacted.
    Raises ConfigError with every problem at once.
    """
    requested = {OFFSETS_TOPIC: TopicCreation(partitions=1, configs=_OFFSETS_CONFIG), **topics}
    missing = sorted(requested.keys() - kafka.topics(requested).keys())
    present = [name for name in requested if name not in missing]
    compacted = {name for name, creation in requested.items() if creation.policy == "compact"}
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
        creation = requested[name]
        config = {"cleanup.policy": "compact", **creation.configs}
        if kafka.create_topic(
            name, partitions=creation.partitions, replication=creation.replication_factor, config=config
        ):
            log.info("topic created", topic=name)
    _wait_for(kafka, missing)
    if problems := kafka.lacking_rights(missing, _RIGHTS):
        raise ConfigError(problems)
    return warnings + _check(kafka, missing, compacted)[1]


def publisher_of(connector: ConnectorConfig, kafka: Kafka, lease: PublishLease | None = None) -> Publisher:
    """Return the publisher of a connector's records and offsets."""
    return Publisher(
        kafka,
        connector.name,
        OFFSETS_TOPIC,
        transactions=connector.transactions,
        overrides=connector.producer,
        lease=lease,
    )


def stored_values(kafka: Kafka) -> dict[bytes, bytes]:
    """Return the newest value of every key in the offsets topic."""
    newest = newest_records(kafka, OFFSETS_TOPIC).items()
    return {key: value for key, message in newest if isinstance(value := message.value(), bytes)}


def _wait_for(kafka: Kafka, names: list[str]) -> None:
    """Wait until brokers know new topics: the controller answers earlier."""
    deadline = time.monotonic() + _CREATION_TIMEOUT
    while unknown := sorted(set(names) - kafka.topics(names).keys() if names else ()):
        if time.monotonic() > deadline:
            raise Unreachable(
                "Kafka",
                f"topics {', '.join(unknown)} were created, but brokers do not know them after {_CREATION_TIMEOUT:g} s",
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
                f"topic {name!r} has min.insync.replicas below 2: if one broker is lost, acknowledged"
                " records may be lost"
            )
    return problems, warnings
