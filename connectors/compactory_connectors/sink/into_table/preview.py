"""A dry run: the statements and rows for the first records of a sink's topics. Writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import psycopg

from compactory.kafka.client import Kafka
from compactory_connectors.consumer.group import matching_topics, split_topics
from compactory_connectors.database.postgres_errors import postgres_errors
from compactory_connectors.topics.topic_reader import read

from ..offsets import open_sink
from ..record import Records, SinkRecord
from .plan import Plan
from .sink_config import SinkConfig
from .writer import TableWriter

__all__ = ["TopicPreview", "preview"]


_Row: TypeAlias = tuple[str | None, ...]


class TopicPreview(NamedTuple):
    """One statement that merges a batch, with the first rows, or the reasons why records would be refused."""

    topic: str
    table: str
    sql: str
    columns: tuple[str, ...]
    rows: tuple[_Row, ...]
    """Texts as COPY takes them."""
    refused: tuple[str, ...]


def preview(config: SinkConfig, kafka: Kafka, *, limit: int = 5) -> list[TopicPreview]:
    """Those of the first ``limit`` records of each topic. Raises ConfigError, Unreachable."""
    writer = TableWriter(config)
    with postgres_errors(config.connection):
        connection = open_sink(config.connection.conninfo, config.name)
        with closing(connection), connection.transaction(force_rollback=True):
            topics = _topics(config, kafka)
            return [item for topic in topics for item in _topic(config, writer, connection, kafka, topic, limit)]


def _topics(config: SinkConfig, kafka: Kafka) -> list[str]:
    names, patterns = split_topics(config.topics)
    return sorted(names | matching_topics(kafka, patterns))


def _topic(
    config: SinkConfig, writer: TableWriter, connection: psycopg.Connection[Any], kafka: Kafka, topic: str, limit: int
) -> Iterator[TopicPreview]:
    rows: dict[Plan, list[_Row]] = defaultdict(list)
    refused: list[str] = []
    for record in SinkRecord.of(list(islice(read(kafka, topic), limit))):
        one = Records([record])
        for write in writer.writes(connection, one):
            rows[write.plan] += [
                tuple(None if text == r"\N" else text for text in line.split("\t")) for line in write.lines
            ]
        refused += [f"partition {record.partition}, offset {record.offset}: {item.reason}" for item in one.failed]
    for plan, found in rows.items():
        yield TopicPreview(topic, plan.target.text, plan.statement.as_string(), plan.columns, tuple(found), ())
    if refused or not rows:
        yield TopicPreview(topic, config.table_name_format.replace("${topic}", topic), "", (), (), tuple(refused))
