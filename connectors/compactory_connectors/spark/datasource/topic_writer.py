"""``df.write.format("compactory")`` into a plain topic: idempotent producers in the executors, at least once.

A task that Spark tries again sends its rows again; readers of a compacted topic see the newest record of each key.
Spark calls `write` and `commit` in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from compactory.codec.encoding import RecordEncoder
from compactory.directory import Directory
from compactory.errors import ConfigError, Unreachable, WriteRefused
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory.write.delivery import Delivery, Record
from compactory.write.destination import Destination
from compactory_connectors.kafka.topic_reader import records_at
from compactory_connectors.source.offsets.stored_offsets import read_offsets

from ..typed.json_objects import KEY, JsonRows
from .options import write_problems
from .rows_to_write import raw_records, rows_to_write

__all__ = ["TopicWriter", "refuse_mastered", "refuse_owned", "topic_writer"]

_OPTIONS: Final = ("topic", "raw", "timeout", "ignoreNullFields", "kafka.bootstrap.servers")
_KAFKA: Final = "kafka."
_BATCH: Final = 10_000
"""Records that a task sends before it waits for their acknowledgements."""
_PRODUCER: Final[Mapping[str, Any]] = {
    "partitioner": "murmur2_random",  # as Java clients and the source: a key stays in its partition
    "compression.type": "lz4",
    "linger.ms": 20,
}


@dataclass(frozen=True)
class TopicWriter(DataSourceArrowWriter):
    """Sends the rows of a DataFrame. Made by :func:`topic_writer`.

    ``rows`` None: the columns ``key`` and ``value`` are sent as they are. ``kafka`` holds secrets: never log it.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    topic: str
    rows: JsonRows | None
    timeout: float

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one partition. Raises WriteRefused, ConfigError, Unreachable; some rows may be sent by then."""
        with closing(Kafka(self.kafka)) as kafka:
            destination = Destination(kafka, self.topic)
            required = destination.prepare(self.timeout, create=False) | {
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(self.timeout * 1000),
            }
            delivery = Delivery(kafka, self.topic, _PRODUCER, required, self.timeout)
            try:
                rows = self._records(iterator)
                while records := [*islice(rows, _BATCH)]:
                    if too_large := destination.too_large(records):
                        raise WriteRefused(too_large[:5])
                    shipment = delivery.send(records)
                    if not shipment.complete:
                        reason = next(iter(shipment.errors.values()), delivery.client_error)
                        raise Unreachable(
                            "Kafka",
                            f"topic {self.topic!r}: {shipment.places.count(None):,} of {len(records):,} records were"
                            f" not acknowledged within {self.timeout:g} s ({reason}); write again",
                        )
            finally:
                delivery.close(0.0)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: every record is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave what was sent: readers have seen it."""

    def _records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Record]:
        if self.rows is not None:
            encoder = RecordEncoder(Directory(self.topic))
            for key, is_delete, value in self.rows.rows(batches):
                assert key is not None, "the column is required"
                yield (encoder.key(key), None) if is_delete else encoder.record(key, value)
        else:
            yield from raw_records(batches)


def topic_writer(options: Mapping[str, str], schema: t.StructType, overwrite: bool) -> TopicWriter:
    """Check the options, the columns and the topic's owner. Raises ConfigError with every problem, Unreachable."""
    by_name = {name.lower(): value for name, value in options.items()}
    own = {name: value for name, value in options.items() if not name.lower().startswith(_KAFKA)}
    problems = write_problems(own, _OPTIONS, ("timeout",), False)
    if overwrite:
        problems.append(
            "mode overwrite would remove keys: compactory spark load --to kafka --mode replace does so, within a limit"
        )
    problems += [f"option {name} is missing" for name in ("topic", "kafka.bootstrap.servers") if not by_name.get(name)]
    rows, row_problems = rows_to_write(by_name, schema)
    problems += row_problems
    if rows is not None and not rows.has_key:
        problems.append(f"column {KEY} is missing: the key of each record, as text")
    if problems:
        raise ConfigError(problems)
    kafka = {name.removeprefix(_KAFKA): value for name, value in by_name.items() if name.startswith(_KAFKA)}
    with closing(Kafka(kafka)) as client:
        refuse_owned(client, by_name["topic"])
        refuse_mastered(client, by_name["topic"])
        Destination(client, by_name["topic"]).prepare(10.0, create=False)
    return TopicWriter(kafka, by_name["topic"], rows, float(by_name.get("timeout", 60)))


def refuse_owned(kafka: Kafka, topic: str) -> None:
    """Raise ConfigError if a source has stored an offset of this topic: it would never notice other records."""
    description = kafka.topics([topic]).get(topic)
    topic_id = description.topic_id if description is not None else None
    owners = [
        f"connector {stored.connector!r} (table {stored.table})"
        for stored in read_offsets(kafka)
        if stored.value is not None
        and stored.offset is not None
        and stored.offset.topic is not None
        and stored.offset.topic[0] == topic
        and (topic_id is None or stored.offset.topic[1] in (None, topic_id))
    ]
    if owners:
        raise ConfigError(
            f"topic {topic!r} is that of {', '.join(owners)}: its source goes on from its stored offset and would never"
            " notice other records. Write into its table in Postgres, which the source publishes"
        )


def refuse_mastered(kafka: Kafka, topic: str) -> None:
    """Raise ConfigError if servers have written the topic of a directory mastered in Kafka: only they may.

    A client that may not see the servers' own topic beside it can't tell.
    """
    from compactory_mastered.owner import answers_topic_of, is_answers_key  # tasks are spared it

    answers = Partition(answers_topic_of(topic), 0)
    if answers.topic not in kafka.topic_names():
        return
    record = records_at(kafka, kafka.log_starts([answers])).get(answers)
    key = record.key() if record is not None else None
    if isinstance(key, bytes) and is_answers_key(key.decode(errors="replace")):
        raise ConfigError(
            f"topic {topic!r} is that of a directory mastered in Kafka, as {answers.topic!r} shows. Only its servers"
            " write it: give options directory and url in place of topic, or load it with COMPACTORY_URL set"
        )
