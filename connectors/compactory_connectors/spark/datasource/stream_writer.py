"""``df.writeStream.format("compactory")``: each micro-batch is written as ``df.write`` writes a DataFrame.

Into a table, and into a directory mastered in Kafka, a micro-batch that Spark repeats is written once: its load id is
the query's id with the batch's number. Into a plain topic it is written at least once.

Spark makes a writer for the tasks of each micro-batch, and another one, in another process, that commits it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from compactory.errors import ConfigError

from .entry_writer import EntryWriter, entry_writer
from .table_writer import TableWriter, table_writer
from .topic_writer import TopicWriter, topic_writer

__all__ = ["stream_writer"]

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
"""Properties of the tasks of a micro-batch."""
_OPTIONS_OF_SPARK: Final = ("checkpointlocation", "queryname")


class _RecordStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches into a topic, or into a mastered directory."""

    def __init__(self, writer: TopicWriter | EntryWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        writer = self._writer
        if isinstance(writer, EntryWriter):
            writer = writer.of_load(f"{_task_property(_QUERY)}/{_task_property(_BATCH)}")
        return writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's)
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self._writer.abort(messages)


@dataclass
class _Staged(WriterCommitMessage):
    """A task's rows in the staging table of this stem."""

    query: str
    stem: str
    message: WriterCommitMessage


class _TableStreamWriter(DataSourceStreamArrowWriter):
    """Stages micro-batches beside a table, and merges each in one transaction."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Staged(_task_property(_QUERY), self._writer.stem, self._writer.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = [message for message in messages if isinstance(message, _Staged)]
        if staged:
            writer = self._of_batch(staged[0], batchId)
            writer.commit([message.message for message in staged])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for message in messages:
            if isinstance(message, _Staged):
                self._of_batch(message, batchId).abort([])
                return

    def _of_batch(self, staged: _Staged, batch: int) -> TableWriter:
        return self._writer.of_load(staged.stem, f"{staged.query}/{batch}", f"{staged.query}/{batch - 1}")


def stream_writer(
    options: Mapping[str, str], schema: t.StructType, overwrite: bool
) -> _RecordStreamWriter | _TableStreamWriter:
    """Check the options and the columns. Raises ConfigError with every problem, Unreachable."""
    by_name = {name.lower(): value for name, value in options.items() if name.lower() not in _OPTIONS_OF_SPARK}
    if "loadid" in by_name:
        raise ConfigError("option loadId is for df.write: the id of a micro-batch is its query's id and its number")
    if overwrite and ("directory" in by_name or "topic" in by_name):
        raise ConfigError("output mode complete would remove keys, and only a table takes it: outputMode('append')")
    if "directory" in by_name:
        return _RecordStreamWriter(entry_writer(by_name, schema, False))
    if "topic" in by_name:
        return _RecordStreamWriter(topic_writer(by_name, schema, False))
    return _TableStreamWriter(table_writer(by_name, schema, overwrite))


def _task_property(name: str) -> str:
    context = TaskContext.get()
    assert context is not None, "Spark's tasks have one"
    return str(context.getLocalProperty(name))
