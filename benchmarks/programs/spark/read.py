"""A topic's records counted, then its values as typed columns grouped: by us or by Spark's Kafka connector.

Usage: spark.read BOOTSTRAP TOPIC ours|connector. Prints seconds since the program was launched, those of the work, of
each step, and of the work done again in the same session, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.programs.spark.export import connector_options
from benchmarks.stage import LAUNCHED
from compactory_connectors.spark import register
from compactory_connectors.spark.session import SparkOptions, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = "id bigint, terminalId string, acquirerId string, isActive boolean, updatedDate string"


def ours(spark: SparkSession, kafka: str, topic: str) -> tuple[DataFrame, DataFrame]:
    """Return the records, and the typed rows of the directory."""
    register(spark)
    reader = spark.read.format("compactory").option("kafka.bootstrap.servers", kafka).option("topic", topic)
    return reader.option("raw", "true").load(), reader.option("raw", "false").schema(FIELDS).load()


def connector(spark: SparkSession, kafka: str, topic: str) -> tuple[DataFrame, DataFrame]:
    """Return the records, and their values as typed rows."""
    from pyspark.sql import functions as f

    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "kafka.isolation.level": "read_committed"}
    records = spark.read.format("kafka").options(**options).load()
    return records, records.select(f.from_json(f.col("value").cast("string"), FIELDS).alias("it")).select("it.*")


def work(records: DataFrame, typed: DataFrame) -> list[float]:
    """Count, group, and return the seconds of both."""
    began = time.perf_counter()
    assert records.count() > 0
    counted = time.perf_counter()
    assert len(typed.groupBy("acquirerId").count().collect()) == 500
    return [counted - began, time.perf_counter() - counted]


def main() -> None:
    """Measure."""
    kafka, topic, side = sys.argv[1:]
    options = connector_options() if side == "connector" else SparkOptions()
    with session("benchmark", options) as spark:
        began = time.perf_counter()
        frames = {"ours": ours, "connector": connector}[side](spark, kafka, topic)
        steps = work(*frames)
        figures = {
            "seconds": time.time() - float(os.environ.get(LAUNCHED, time.time())),
            "work_seconds": time.perf_counter() - began,
            "steps": steps,
            "again_seconds": sum(work(*frames)),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
