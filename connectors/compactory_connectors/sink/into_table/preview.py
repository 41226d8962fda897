"""A dry run: applies the first records of a sink's topics as a run does, and rolls back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import NamedTuple, TypeAlias

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.consumer_group import matching_topics, split_topics
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.postgres.postgres_errors import postgres_errors

from ..applying import Applying
from ..record import Records, SinkRecord
from ..statements import open_sink
from .plan import Plan
from .sink_config import SinkConfig
from .writer import TableWriter

__all__ = ["TopicPreview", "preview"]


_WAITS = "waits for an earlier record of its key"
_Row: TypeAlias = tuple[str | None, ...]


class TopicPreview(NamedTuple):
    """The statement that merges a batch, with the first rows; or the reasons of refused records."""

    topic: str
    table: str
    sql: str
    columns: tuple[str, ...]
    rows: tuple[_Row, ...]
    """Texts for COPY."""
    refused: tuple[str, ...]


def preview(config: SinkConfig, kafka: Kafka, *, limit: int = 5) -> list[TopicPreview]:
    """Return the writes of the first ``limit`` records of each topic. Raises ConfigError, Unreachable."""
    writer = TableWriter(config)
    with postgres_errors(config.connection):
        connection = open_sink(config.connection.conninfo, config.name)
        applying = Applying(connection=connection, sink=config.name, handler=writer)
        with closing(connection), connection.transaction(force_rollback=True):
            topics = _topics(config, kafka)
            return [item for topic in topics for item in _topic(config, writer, applying, kafka, topic, limit)]


def _topics(config: SinkConfig, kafka: Kafka) -> list[str]:
    names, patterns = split_topics(config.topics)
    return sorted(names | matching_topics(kafka, patterns))


def _topic(
    config: SinkConfig, writer: TableWriter, applying: Applying, kafka: Kafka, topic: str, limit: int
) -> Iterator[TopicPreview]:
    rows: dict[Plan, list[_Row]] = defaultdict(list)
    records = SinkRecord.of(list(islice(read(kafka, topic), limit)))
    failed = applying.apply_unstored(records)
    refused_records = {(item.record.partition, item.record.offset) for item in failed}
    for record in records:
        if (record.partition, record.offset) in refused_records:
            continue
        for write in writer.writes(applying.connection, Records([record])):
            rows[write.plan] += [
                tuple(None if text == r"\N" else text for text in line.split("\t")) for line in write.lines
            ]
    for plan, plan_rows in rows.items():
        yield TopicPreview(topic, plan.target.text, plan.statement.as_string(), plan.columns, tuple(plan_rows), ())
    if failed or not rows:
        refused = tuple(
            f"partition {record.partition}, offset {record.offset}: {reason or _WAITS}" for record, reason in failed
        )
        yield TopicPreview(topic, config.table_name_format.replace("${topic}", topic), "", (), (), refused)
