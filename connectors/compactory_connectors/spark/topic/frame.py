"""A topic as a DataFrame: the newest record of each key, or all of them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from compactory.kafka.client import Kafka

from ..record_batch import Batches, Task, in_arrow
from .extent import Extent, capture
from .newest import newest_records
from .reading import SCHEMA, Reading, read_span, tuned

__all__ = ["Extent", "capture", "copies", "in_tasks", "latest", "records"]


def latest(
    spark: SparkSession, kafka: Kafka, extent: Extent, *, tombstones: bool = False, pieces: int | None = None
) -> DataFrame:
    """The newest record of each key within ``extent``: ``key, value, partition, offset, timestamp_ms``.

    What stores find: committed records only; of a key in several partitions the newer timestamp wins, then the higher
    partition, tombstones included. With ``tombstones`` removed keys stay, with a null value. Records without a key are
    no entries and are left out. Read by about as many tasks as ``pieces`` says, else as there are cores.

    Lazy: every action reads the topic again, within the same offsets; call ``extent.check(kafka)`` after the last one.
    """
    found = _of_partitions(spark, kafka, extent, pieces)
    newer = f.struct("timestamp_ms", "partition")
    among = f.max_by(f.struct("value", "partition", "offset", "timestamp_ms"), newer).alias("it")
    found = found.groupBy("key").agg(among).select("key", "it.*")
    return found if tombstones else found.where("value IS NOT NULL")


def copies(spark: SparkSession, kafka: Kafka, extent: Extent) -> DataFrame:
    """``key, value`` of :func:`latest`, and ``copies``: partition and ``timestamp_ms`` of every one that still lives.

    A key whose newest record is a tombstone is there, with a null value, while it has such a copy elsewhere.
    """
    found = _of_partitions(spark, kafka, extent, None)
    value = f.max_by(f.struct("value"), f.struct("timestamp_ms", "partition")).getField("value").alias("value")
    alive = f.when(f.col("value").isNotNull(), f.struct("partition", "timestamp_ms"))
    return found.groupBy("key").agg(value, f.collect_list(alive).alias("copies")).where("size(copies) > 0")


def records(spark: SparkSession, kafka: Kafka, extent: Extent, *, committed: bool = True) -> DataFrame:
    """Every committed record of ``extent`` that has a key, in the columns of :func:`latest`; tombstones are null.

    Without ``committed`` also those of transactions that are open or were aborted.
    """
    reading = _reading(spark, kafka, extent, None, committed=committed)
    return in_tasks(spark, reading, lambda batches: batches, SCHEMA)


def _of_partitions(spark: SparkSession, kafka: Kafka, extent: Extent, pieces: int | None) -> DataFrame:
    """The newest record of each key in each partition, where the later offset counts, whatever its timestamp says."""
    reading = _reading(spark, kafka, extent, pieces)
    read = in_tasks(spark, reading, lambda batches: newest_records(batches, reading.memory), SCHEMA)
    its = f.max_by(f.struct("value", "offset", "timestamp_ms"), "offset").alias("it")
    return read.repartition("key").groupBy("key", "partition").agg(its).select("key", "partition", "it.*")


def _reading(
    spark: SparkSession, kafka: Kafka, extent: Extent, pieces: int | None, *, committed: bool = True
) -> Reading:
    spans = extent.spans(pieces or spark.sparkContext.defaultParallelism)
    return Reading(properties=kafka.properties(), topic=extent.topic, spans=spans, committed=committed)


def in_tasks(spark: SparkSession, reading: Reading, make: Task, schema: pa.Schema) -> DataFrame:
    """The rows that tasks make of records, one for each span; one task with nothing to do where there is no span."""

    def run(numbers: Batches) -> Batches:
        with tuned():
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    if number < len(reading.spans):
                        yield from make(read_span(reading, reading.spans[number]))

    tasks = len(reading.spans) or 1
    return in_arrow(spark.range(0, tasks, 1, tasks), run, schema)
