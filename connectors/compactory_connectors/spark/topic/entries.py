"""The newest values of a topic, and which of them are entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from compactory.codec.decoding import document_reader, field_reader
from compactory.directory import Directory
from compactory.kafka.client import Kafka

__all__ = ["entry_test", "kafka_options", "newest_values"]


def entry_test(directory: Directory[Any]) -> Callable[[bytes | None], bool]:
    """Return a function: is this value an entry? A value that readers can't read counts as one."""
    if directory.active is None:
        return lambda value: value is not None
    read, active = document_reader(directory.envelope), field_reader(directory.active)

    def is_entry(value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            entry = read(value)
        except ValueError:
            return True
        return entry is not None and active(entry) is not False

    return is_entry


def newest_values(spark: SparkSession, kafka: Kafka, topic: str) -> DataFrame:
    """Return ``key, value`` of the newest record of each key at the time when the query is planned; no removed keys.

    Of a key in several partitions the newer timestamp wins, then the higher partition, tombstones included.
    """
    reader = spark.read.format("compactory").options(**kafka_options(kafka), topic=topic, raw="true")
    records = reader.load().where("key IS NOT NULL")
    last = f.max_by(f.struct("value", "timestamp"), "offset").alias("last")
    by_partition = records.groupBy("key", "partition").agg(last).select("key", "partition", "last.*")
    value = f.max_by(f.struct("value"), f.struct("timestamp", "partition")).getField("value").alias("value")
    return by_partition.groupBy("key").agg(value).where("value IS NOT NULL")


def kafka_options(kafka: Kafka) -> dict[str, str]:
    """Return the client's properties as options of the format."""
    return {f"kafka.{name}": str(value) for name, value in kafka.properties().items()}
