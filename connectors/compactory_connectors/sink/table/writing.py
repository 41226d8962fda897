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
    writers: WeakKeyDictionary[psycopg.Connection[Any], TableWriter] = WeakKeyDictionary()
    one = TableWriter(config)

    def write(connection: psycopg.Connection[Any], records: Records) -> None:
        if config.parallel == 1:
            one(connection, records)
            return
        if connection not in writers:
            writers[connection] = TableWriter(config)
        writers[connection](connection, records)

    return TransactionalSink(
        kafka,
        config.connection,
        config.topics,
        write,
        name=config.name,
        group_id=config.consumer.get("group.id"),
        prepare=one.prepare,
        batch=config.batch,
        parallel=config.parallel,
        on_failure="set_aside" if config.tolerant else "stop",
        dead_letters=config.dead_letters,
        dead_letter_headers=config.dead_letter_headers,
        start=cast("Start", config.start),
        properties=config.consumer,
    )
