"""Every version of a key, with the time in which it was the newest."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

__all__ = ["with_validity"]


def with_validity(records: DataFrame, first: str, last: str, *, time: str, prefix: str = "") -> DataFrame:
    """All records of a topic and, as columns ``first`` and ``last``, since when each counts and until when.

    ``last`` is the time of the next version; null: none came. Times are those of the column ``time``; the columns
    ``key``, ``partition`` and ``offset`` may have a ``prefix``. Within a partition records come in its order: one with
    an older timestamp than one before it counts from that one's on. Versions that compaction has removed are not there;
    the one before them is valid until the next that is.
    """
    key, partition, offset = f"{prefix}key", f"{prefix}partition", f"{prefix}offset"
    in_log = Window.partitionBy(key, partition).orderBy(offset)
    by_time = Window.partitionBy(key).orderBy(first, partition, offset)
    found = records.repartition(key)
    found = found.withColumn(first, f.max(time).over(in_log.rowsBetween(Window.unboundedPreceding, 0)))
    return found.withColumn(last, f.lead(first).over(by_time))
