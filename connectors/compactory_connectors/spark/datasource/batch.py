"""The reader of ``spark.read``: a directory's newest records as typed rows, or every record of a topic.

Planned on the driver in a Python process of its own, read in the executors with the store's Kafka client.
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
from ..topic.partition_homes import strays
from ..topic.reading import Reading, in_rows, newest_of, read_span, tuned
from ..typed.fields import arrow_schema
from ..typed.typed_rows import RowShape, TypedRows, times
from .columns import checked_fields
from .options import Keys, ReadOptions
from .position import extent_of
from .pushdown import Narrowed

__all__ = ["BatchReader", "Piece", "pieces_of", "reading_of", "record_rows", "row_shape"]

_LEAST: Final = 100_000  # offsets of a piece of raw records, unless more are asked for
_TASK: Final = 500_000  # offsets of a piece of raw records
_SAMPLED: Final = 500  # last offsets of a partition that show which partitioner wrote the topic
_BUCKET: Final = 5_000_000  # offsets of a task at most, if a key may be in any partition


@dataclass
class Piece(InputPartition):
    """The share of one task: spans of a topic, and one of the buckets into which the keys of these spans are parted.

    ``keys`` says where the records of a key can be. Spark pickles the reader before it asks for pieces, so they carry
    what is found out then.
    """

    spans: Sequence[Span]
    bucket: int = 0
    buckets: int = 1
    keys: Keys = "single"
    partitions: int = 1


class BatchReader(DataSourceReader):
    """Reads what the options say, in the columns of ``schema``. Raises ConfigError, Unreachable."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = row_shape(options, schema, changes=options.versions)
        self._each = options.raw or options.versions
        self._narrowed = Narrowed()

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 (Spark's name)
        """Take what spares reading; Spark applies all of them again."""
        self._narrowed = self._narrowed.by(filters, raw=self._options.raw)
        return filters

    def partitions(self) -> list[InputPartition]:
        """The pieces of the topic up to the position that is read, which all tasks and attempts share."""
        with closing(Kafka(self._options.kafka)) as kafka:
            extent = extent_of(kafka, self._options)
            extent = _newer(kafka, extent, self._narrowed.since_ms)
            if self._each:
                spans = self._narrowed.spans(pieces_of(extent, self._options.min_partitions))
                return [Piece([span]) for span in spans] or [Piece([])]
            keys = self._partitioner(extent)
            return list(_of_directory(extent, keys, self._options.min_partitions)) or [Piece([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece. Raises CompactoryError, Unreachable."""
        assert isinstance(partition, Piece)
        with tuned():
            yield from self._every(partition) if self._each else self._newest(partition)

    def _every(self, piece: Piece) -> Batches:
        for span in piece.spans:
            batches = (self._wanted(batch, piece) for batch in read_span(reading_of(self._options, self._shape), span))
            yield from record_rows(batches, self._options, self._shape)

    def _newest(self, piece: Piece) -> Batches:
        reading = reading_of(self._options, self._shape)
        rows = TypedRows(self._shape)
        for batch in newest_of(self._keyed(reading, span, piece) for span in piece.spans):
            yield rows.of(batch.filter(batch.column("value").is_valid())).rows

    def _keyed(self, reading: Reading, span: Span, piece: Piece) -> Batches:
        for batch in read_span(reading, span):
            self._check_home(batch, piece)
            wanted = self._wanted(batch, piece)
            if wanted.num_rows:
                yield wanted

    def _wanted(self, batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
        """Records of the piece's bucket whose key a filter wants."""
        keys = self._narrowed.keys
        if keys is not None:
            batch = batch.filter(pa.array([key in keys for key in batch.column("key").to_pylist()], pa.bool_()))
        if piece.buckets == 1:
            return batch
        mine = [crc32(key) % piece.buckets == piece.bucket for key in batch.column("key").to_pylist()]
        return batch.filter(pa.array(mine, pa.bool_()))

    def _check_home(self, batch: pa.RecordBatch, piece: Piece) -> None:
        """Raise CompactoryError for keys that are not in the partition where the partitioner puts them."""
        if piece.keys in ("java", "librdkafka"):
            java, native = strays(batch.column("key"), batch.column("partition")[0].as_py(), piece.partitions)
            if java if piece.keys == "java" else native:
                raise CompactoryError(
                    f"topic {self._options.directory.topic!r} has keys in other partitions than the {piece.keys}"
                    " partitioner puts them in, so a key may be in two: set option keys to any, or to single if each"
                    " key is in one partition only"
                )

    def _partitioner(self, extent: Extent) -> Keys:
        if self._options.keys != "auto":
            return self._options.keys
        partitions = len(extent.ends)
        if partitions == 1:
            return "single"
        reading = reading_of(self._options, self._shape)
        java = native = 0
        for span in extent.tail(_SAMPLED):
            for batch in read_span(reading, span):
                found = strays(batch.column("key"), span.partition, partitions)
                java, native = java + found[0], native + found[1]
        return "java" if not java else "librdkafka" if not native else "any"


def record_rows(records: Batches, options: ReadOptions, shape: RowShape) -> Batches:
    """A row for each record: raw, or typed."""
    rows = TypedRows(shape)
    for batch in in_rows(records):
        yield _raw(batch, shape.schema) if options.raw else rows.of(batch).rows


def _raw(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of raw records that a schema names."""
    found = [times(records) if name == "timestamp" else records.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(found, schema=schema)


def row_shape(options: ReadOptions, schema: StructType, *, changes: bool) -> RowShape:
    """The shape of rows. Raises ConfigError with every column that does not exist."""
    fields = checked_fields(schema, raw=options.raw)
    return RowShape(
        schema=arrow_schema(schema),
        fields=fields,
        envelope=options.directory.envelope,
        active=options.directory.active,
        base64=options.base64_decimals,
        changes=changes,
    )


def pieces_of(extent: Extent, tasks: int) -> list[Span]:
    """Spans of about as many records each, for as many tasks at least where the topic has so many."""
    return extent.spans(max(tasks, -(-extent.offsets // _TASK)), _LEAST if tasks == 1 else 1)


def _of_directory(extent: Extent, keys: Keys, tasks: int) -> Iterator[Piece]:
    told: dict[str, Any] = {"keys": keys, "partitions": len(extent.ends)}
    if keys == "any":
        buckets = max(tasks, -(-extent.offsets // _BUCKET)) if extent.whole else 0
        yield from (Piece(extent.whole, bucket=bucket, buckets=buckets, **told) for bucket in range(buckets))
        return
    buckets = -(-tasks // max(1, len(extent.whole)))
    for span in extent.whole:
        yield from (Piece([span], bucket=bucket, buckets=buckets, **told) for bucket in range(buckets))


def _newer(kafka: Kafka, extent: Extent, since_ms: int | None) -> Extent:
    """Without what is older than all wanted records: in a partition, all before the first that is as new."""
    if since_ms is None:
        return extent
    found = by_number(kafka.offsets_at((Partition(extent.topic, number) for number in extent.ends), since_ms))
    starts = {number: min(max(at, extent.starts[number]), extent.ends[number]) for number, at in found.items()}
    return replace(extent, starts=starts)


def reading_of(options: ReadOptions, shape: RowShape) -> Reading:
    """The facts about the topic that tasks need."""
    headers = options.raw and "headers" in shape.schema.names
    return Reading(
        properties=options.kafka, topic=options.directory.topic, spans=(), keyless=options.raw, headers=headers
    )
