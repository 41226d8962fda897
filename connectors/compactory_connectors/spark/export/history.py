"""Every version of every key that a topic still has, with the time in which it was the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactory.kafka.client import Kafka

from ..topic.extent import Extent
from ..topic.frame import records
from .rows import VALIDITY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["versions"]


def versions(spark: SparkSession, kafka: Kafka, extent: Extent) -> DataFrame:
    """All records of ``extent`` with ``_valid_from_ms`` and ``_valid_to_ms``, the next one's time; null: none came.

    By the records' timestamps. Within a partition they come in its order: one with an older timestamp than one before
    it counts from that one's on. Versions that compaction has removed are not there; the one before them is valid until
    the next that is.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    first, last = VALIDITY
    in_log = Window.partitionBy("key", "partition").orderBy("offset")
    by_time = Window.partitionBy("key").orderBy(first, "partition", "offset")
    found = records(spark, kafka, extent).repartition("key")
    found = found.withColumn(first, f.max("timestamp_ms").over(in_log.rowsBetween(Window.unboundedPreceding, 0)))
    return found.withColumn(last, f.lead(first).over(by_time)).select(
        "key", "value", "partition", "offset", "timestamp_ms", first, last
    )
