"""What a sink would do with the first records of its topics, without writing anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from compactory.kafka.client import Kafka, TopicPartition
from compactory_connectors.database.postgres_errors import postgres_errors

from ..connecting import open_sink
from ..failure import RecordRefused
from ..record import SinkRecord
from .sink_config import SinkConfig
from .statements import delete, merge
from .writer import TableWriter

__all__ = ["TopicPreview", "preview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPreview:
    """One topic: its table, the statement that merges a batch, the first rows and why records would be refused."""

    topic: str
    table: str
    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    refused: tuple[str, ...]


def preview(config: SinkConfig, kafka: Kafka, *, limit: int = 5) -> list[TopicPreview]:
    """One for each table that the first ``limit`` records of each topic go to. Raises ConfigError, Unreachable."""
    writer = TableWriter(config)
    with postgres_errors(config.connection):
        connection = open_sink(config.connection.conninfo, config.name)
        with closing(connection), connection.transaction(force_rollback=True):
            return [_topic(writer, connection, kafka, topic, limit) for topic in _topics(config, kafka)]


def _topics(config: SinkConfig, kafka: Kafka) -> list[str]:
    if config.topics[0].startswith("^"):
        return [name for name in kafka.topic_names() if re.match(config.topics[0], name)]
    return list(config.topics)


def _topic(writer: TableWriter, connection: Any, kafka: Kafka, topic: str, limit: int) -> TopicPreview:
    table = writer.config.table_format.replace("${topic}", topic)
    statement, columns = "", tuple[str, ...]()
    rows: list[tuple[Any, ...]] = []
    refused: list[str] = []
    for record in islice(_records(kafka, topic), limit):
        try:
            placed = writer.placed(connection, record)
            if placed is None:
                continue
            plan, row = placed
            rows.append(tuple(row))
            made = delete(plan.target, plan.key) if plan.deletes else merge(writer.config.insert_mode, plan)
            table, columns, statement = plan.target.text, plan.columns, made.as_string(connection)
        except RecordRefused as error:
            refused.append(f"partition {record.partition}, offset {record.offset}: {error}")
    return TopicPreview(
        topic=topic, table=table, sql=statement, columns=columns, rows=tuple(rows), refused=tuple(refused)
    )


def _records(kafka: Kafka, topic: str) -> Iterator[SinkRecord]:
    partitions = kafka.topics([topic])[topic].all()
    starts, ends = kafka.log_starts(partitions), kafka.stable_offsets(partitions)
    left = {part for part in partitions if starts[part] < ends[part]}
    consumer = kafka.consumer("follow")
    try:
        consumer.assign([TopicPartition(part.topic, part.partition, starts[part]) for part in left])
        while left:
            message = consumer.poll(10.0)
            if message is None:
                return
            if message.error() is None:
                yield SinkRecord.of([message])[0]
            else:
                left -= {part for part in left if part.partition == message.partition()}
    finally:
        consumer.close()
