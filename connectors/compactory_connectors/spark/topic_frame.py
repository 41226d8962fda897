"""A topic as a DataFrame: the newest record of each key, or all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactory.kafka import Kafka

from .topic_extent import Extent, capture
from .topic_reading import COLUMNS, Reading, every, newest, reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Extent", "capture", "latest", "records"]


def latest(spark: SparkSession, kafka: Kafka, extent: Extent, *, tombstones: bool = False) -> DataFrame:
    """The newest record of each key within ``extent``: ``key, value, partition, offset, timestamp_ms``.

    What stores find: committed records only; of a key in several partitions the newer timestamp wins, then the higher
    partition, tombstones included. With ``tombstones`` removed keys stay, with a null value. Records without a key are
    no entries and are left out. Lazy: every action reads the topic again, within the same offsets; call
    ``extent.check(kafka)`` after the last one.
    """
    from pyspark.sql import functions as f

    spans = extent.spans(spark.sparkContext.defaultParallelism)
    read = _frame(spark, Reading(properties=kafka.properties(), topic=extent.topic, spans=spans), whole=False)
    found = read
    # Within a partition the later offset counts, whatever its timestamp says.
    of_partition = f.max_by(f.struct("value", "offset", "timestamp_ms"), "offset").alias("it")
    found = found.repartition("key").groupBy("key", "partition").agg(of_partition).select("key", "partition", "it.*")
    newer = f.struct("timestamp_ms", "partition")
    among = f.max_by(f.struct("value", "partition", "offset", "timestamp_ms"), newer).alias("it")
    found = found.groupBy("key").agg(among).select("key", "it.*")
    return found if tombstones else found.where("value IS NOT NULL")


def records(spark: SparkSession, kafka: Kafka, extent: Extent) -> DataFrame:
    """Every committed record that has a key within ``extent``, in the columns of :func:`latest`; tombstones are null."""
    spans = extent.spans(spark.sparkContext.defaultParallelism)
    return _frame(spark, Reading(properties=kafka.properties(), topic=extent.topic, spans=spans), whole=True)


def _frame(spark: SparkSession, reading: Reading, *, whole: bool) -> DataFrame:
    if not reading.spans:
        return spark.createDataFrame([], COLUMNS)
    numbers = spark.range(0, len(reading.spans), 1, len(reading.spans))
    return numbers.mapInArrow(reader(reading, every if whole else newest), COLUMNS)
