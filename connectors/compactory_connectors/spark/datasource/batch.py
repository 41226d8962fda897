"""The reader of ``spark.read``: the newest records of directories as typed rows, or each record of topics.

Planned in a Python process beside the driver, read in the executors with the store's Kafka client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory.records import Partition

from ..record_batch import Batches
from ..topic.extent import Extent, Span, by_number
from ..topic.newest import in_rows, newest_records
from ..topic.partition_homes import strays
from ..topic.reading import Reading, read_span, tuned
from .options import Keys, ReadOptions
from .position import extents_of
from .pushdown import Bounds
from .row_shape import RowShape

__all__ = ["BatchReader", "FilteredReader", "Piece", "pieces_of", "reading_of", "record_rows"]

_LEAST: Final = 100_000
"""Offsets of a piece in which each record is a row, unless ``minPartitions`` asks for more pieces."""
_PIECE: Final = 500_000
"""Offsets of such a piece at most."""
_SAMPLE: Final = 500
"""Last offsets of a partition that show which partitioner wrote the topic."""
_BUCKET: Final = 5_000_000
"""Offsets of a task at most, if a key may be in any partition."""


@dataclass
class Piece(InputPartition):
    """The share of one task: spans of a topic, and one of the buckets into which the keys of these spans are parted.

    ``keys`` says which partitions have a key, of the topic's ``partitions``. Spark pickles the reader before it asks
    for pieces, so a piece has all that planning finds out.
    """

    topic: str
    spans: Sequence[Span]
    topic_id: str | None = None
    bucket: int = 0
    buckets: int = 1
    keys: Keys = "single"
    partitions: int = 1


class BatchReader(DataSourceReader):
    """Reads what the options say, in the columns of ``schema``. Raises ConfigError, Unreachable."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = RowShape.of(options, schema, changes=options.versions)
        self._every_record = options.raw or options.versions
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """Return the pieces of the topics up to the position that is read, which all tasks and attempts share."""
        with closing(Kafka(self._options.kafka)) as kafka:
            pieces: list[InputPartition] = []
            for extent in extents_of(kafka, self._options):
                pieces += self._pieces(_since(kafka, extent, self._bounds.since_ms))
        return pieces or [Piece("", [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a piece. Raises TopicChanged, CompactoryError, Unreachable."""
        assert isinstance(partition, Piece)
        with tuned():
            yield from self._records(partition) if self._every_record else self._newest(partition)
        if partition.topic_id is not None:
            with closing(Kafka(self._options.kafka)) as kafka:
                _extent_of(partition).check(kafka)

    def _pieces(self, extent: Extent) -> Iterator[Piece]:
        if self._every_record:
            spans = self._bounds.spans(pieces_of(extent, self._options.min_partitions), every_record=True)
            yield from (Piece(extent.topic, [span], extent.topic_id) for span in spans)
            return
        keys = self._partitioner(extent)
        tasks = self._options.min_partitions
        if keys == "any":
            shares = [extent.whole] if extent.whole else []
            buckets = max(tasks, -(-extent.offsets // _BUCKET))
        else:
            shares = [[span] for span in self._bounds.spans(extent.whole, every_record=False)]
            buckets = -(-tasks // max(1, len(shares)))
        for spans in shares:
            for bucket in range(buckets):
                yield Piece(extent.topic, spans, extent.topic_id, bucket, buckets, keys, len(extent.ends))

    def _records(self, piece: Piece) -> Batches:
        reading = reading_of(self._options, piece.topic)
        for span in piece.spans:
            batches = (self._matching(batch, piece) for batch in read_span(reading, span))
            yield from record_rows(batches, self._shape, piece.topic)

    def _newest(self, piece: Piece) -> Batches:
        reading = reading_of(self._options, piece.topic)
        rows = self._shape.typed_rows(piece.topic)
        records = (batch for span in piece.spans for batch in self._records_of_keys(reading, span, piece))
        for batch in in_rows(newest_records(records, reading.memory)):
            yield rows.of(batch.filter(batch.column("value").is_valid()))

    def _records_of_keys(self, reading: Reading, span: Span, piece: Piece) -> Batches:
        for batch in read_span(reading, span):
            _check_partitioner(batch, piece)
            matching = self._matching(batch, piece)
            if matching.num_rows:
                yield matching

    def _matching(self, batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
        """Return the records of the piece's bucket whose key a filter wants."""
        keys = self._bounds.keys
        if keys is not None:
            batch = batch.filter(pa.array([key in keys for key in batch.column("key").to_pylist()], pa.bool_()))
        if piece.buckets == 1:
            return batch
        is_in_bucket = [crc32(key) % piece.buckets == piece.bucket for key in batch.column("key").to_pylist()]
        return batch.filter(pa.array(is_in_bucket, pa.bool_()))

    def _partitioner(self, extent: Extent) -> Keys:
        if self._options.keys != "auto":
            return self._options.keys
        partitions = len(extent.ends)
        if partitions == 1:
            return "single"
        reading = reading_of(self._options, extent.topic)
        java = native = 0
        for span in extent.tail(_SAMPLE):
            for batch in read_span(reading, span):
                strays_of_batch = strays(batch.column("key"), span.partition, partitions)
                java, native = java + strays_of_batch[0], native + strays_of_batch[1]
        return "java" if not java else "librdkafka" if not native else "any"


class FilteredReader(BatchReader):
    """Reads less by the filters of a query. Spark refuses such a reader in a session that gives no filters."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 (Spark's name)
        """Use the filters to read less; Spark applies all of them again."""
        self._bounds = self._bounds.by(filters, raw=self._options.raw)
        return filters


def record_rows(records: Batches, shape: RowShape, topic: str) -> Batches:
    """Return a row for each record: raw, or typed."""
    rows = None if shape.raw else shape.typed_rows(topic)
    for batch in in_rows(records):
        yield shape.raw_rows(batch, topic) if rows is None else rows.of(batch)


def pieces_of(extent: Extent, tasks: int) -> list[Span]:
    """Return spans of about as many records each, for ``tasks`` tasks at least if the topic has so many."""
    return extent.spans(max(tasks, -(-extent.offsets // _PIECE)), _LEAST if tasks == 1 else 1)


def reading_of(options: ReadOptions, topic: str) -> Reading:
    """Return how tasks read a topic."""
    return Reading(
        properties=options.kafka,
        topic=topic,
        memory=options.task_memory,
        keyless=options.raw,
        fails_on_loss=options.fails_on_loss,
    )


def _extent_of(piece: Piece) -> Extent:
    starts, ends = ({span.partition: getattr(span, name) for span in piece.spans} for name in ("start", "end"))
    return Extent(topic=piece.topic, topic_id=piece.topic_id, starts=starts, ends=ends)


def _check_partitioner(batch: pa.RecordBatch, piece: Piece) -> None:
    """Raise CompactoryError for keys that are not in the partition where the partitioner puts them."""
    if piece.keys not in ("java", "librdkafka"):
        return
    java, native = strays(batch.column("key"), batch.column("partition")[0].as_py(), piece.partitions)
    if java if piece.keys == "java" else native:
        raise CompactoryError(
            f"topic {piece.topic!r} has keys in other partitions than the {piece.keys} partitioner puts them in, so a"
            " key may be in two: set option keys to any, or to single if each key is in one partition only"
        )


def _since(kafka: Kafka, extent: Extent, since_ms: int | None) -> Extent:
    """Return the extent without the records of each partition before the first one that is as new."""
    if since_ms is None:
        return extent
    partitions = [Partition(extent.topic, number) for number in extent.ends]
    offsets = by_number(kafka.offsets_at(partitions, since_ms))
    starts = {
        number: min(max(offset, extent.starts[number]), extent.ends[number]) for number, offset in offsets.items()
    }
    return replace(extent, starts=starts)
