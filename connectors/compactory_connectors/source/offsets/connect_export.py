"""Offsets in Kafka Connect's own form: what makes the way back to its connector an honest one.

Connect goes on from a timestamp and an id. What a source of ours has published is at least all of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import KafkaError, Message

from compactory.errors import ConfigError, Unreachable
from compactory.kafka.client import Kafka, kafka_errors

from ..publish.stored_offsets import StoredOffset
from .connect_offsets import connect_keys, connect_value, connector_offsets, find_offset, read_topic

__all__ = ["Exported", "export_offsets", "write_offsets"]

_PATIENCE = 30.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One offset as Kafka Connect stores it."""

    table: str
    key: bytes
    value: bytes

    @property
    def partition(self) -> Any:
        """Connect's ``partition``, as its REST interface names it."""
        return orjson.loads(self.key)[1]

    @property
    def offset(self) -> Any:
        """Connect's ``offset``."""
        return orjson.loads(self.value)


def export_offsets(kafka: Kafka, stored: Iterable[StoredOffset], connector: str, topic: str | None) -> list[Exported]:
    """The offsets of a connector under ``connector``, its name in Kafka Connect.

    Keys that ``topic`` has of it are used again: their form depends on the version of the connector and its driver.
    Where none is known every form is given; a task takes the one that it looks for. Raises
    ConfigError for a table whose first load is not finished, and when there is nothing to export.
    """
    known = _known(kafka, connector, topic)
    exported: list[Exported] = []
    problems: list[str] = []
    for item in stored:
        if item.offset is None or item.offset.cursor.empty:
            problems.append(f"table {item.table}: it has no timestamp and no id to go on from")
            continue
        table = None if item.table == "query" else _parts(item.table)
        found = find_offset(known, table)
        keys = [found.key] if found is not None else connect_keys(connector, table)
        value = connect_value(item.offset.cursor)
        exported += [Exported(table=item.table, key=key, value=value) for key in keys]
    if problems or not exported:
        raise ConfigError(problems or "there is nothing to export: no offset is stored")
    return exported


def write_offsets(kafka: Kafka, topic: str, offsets: Sequence[Exported]) -> None:
    """Write them into the workers' topic. Raises ConfigError when it does not exist, and Unreachable."""
    if topic not in kafka.topics([topic]):
        raise ConfigError(f"topic {topic!r} does not exist; it is offset.storage.topic of the Connect workers")
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = kafka.producer({"acks": "all", "partitioner": "murmur2_random"}, {}, failures.append)
    with kafka_errors(f"write to topic {topic!r}", kafka.bootstrap):
        for item in offsets:
            producer.produce(topic, item.value, item.key, on_delivery=delivered)
        left = producer.flush(_PATIENCE)
    if left:
        why = f": {failures[0].str()}" if failures else ""
        raise Unreachable("Kafka", f"topic {topic!r}: {left} offsets were not acknowledged{why}")


def _known(kafka: Kafka, connector: str, topic: str | None) -> list[Any]:
    if topic is None or topic not in kafka.topics([topic]):
        return []
    try:
        return list(connector_offsets(read_topic(kafka, topic), connector, f"topic {topic!r}"))
    except ConfigError:
        return []  # Connect never had it


def _parts(table: str) -> tuple[str, str, str]:
    database, schema, name = table.split(".", 2)
    return database, schema, name
