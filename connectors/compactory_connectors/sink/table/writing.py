"""A sink that writes tables, as its configuration says."""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakKeyDictionary

import psycopg

from compactory.kafka.client import Kafka

from ..record import Records
from ..sink import TransactionalSink
from ..starting import Start
from .sink_config import SinkConfig
from .writer import TableWriter

__all__ = ["table_sink"]


def table_sink(config: SinkConfig, kafka: Kafka) -> TransactionalSink:
    """The sink. Raises ConfigError."""
    one = TableWriter(config)
    others: WeakKeyDictionary[psycopg.Connection[Any], TableWriter] = WeakKeyDictionary()

    def write(connection: psycopg.Connection[Any], records: Records) -> None:
        writer = one if config.parallel == 1 else others.setdefault(connection, TableWriter(config))
        writer(connection, records)

    return TransactionalSink(
        kafka,
        config.connection,
        config.topics,
        write,
        name=config.name,
        group_id=config.consumer.get("group.id"),
        prepare=one.prepare,
        batch=config.batch_size,
        parallel=config.parallel,
        on_failure="set_aside" if config.errors_tolerance == "all" else "stop",
        dead_letters=config.dead_letters or None,
        dead_letter_headers=config.dead_letter_headers,
        start=cast("Start", config.start),
        properties=config.consumer,
    )
