"""Rows enriched by a directory, or by a broadcast join on the same entries in Parquet.

Usage: spark.enrich BOOTSTRAP TOPIC ours|parquet FOLDER ROWS. The rows and the Parquet copy are written into FOLDER on
first use, by another session, before anything is timed. Prints the seconds of the work and of the same again, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from compactory_connectors.spark import enrich, register
from compactory_connectors.spark.session import SparkOptions, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = "acquirerId string, terminalId string"


def prepare(kafka: str, topic: str, folder: str, rows: int) -> None:
    """Write the rows, whose keys are spread over twice the entries, and the entries."""
    with session("prepare", SparkOptions()) as spark:
        register(spark)
        reader = spark.read.format("compactory").option("kafka.bootstrap.servers", kafka).option("topic", topic)
        entries = reader.schema(f"{FIELDS}, _key string").load()
        entries.write.parquet(f"{folder}/entries")
        number = spark.read.parquet(f"{folder}/entries").count()
        columns = ("id", f"cast(pmod(hash(id), {number * 2}) as string) terminal", "cast(id % 1000 as double) amount")
        spark.range(rows).selectExpr(*columns).write.parquet(f"{folder}/rows")


def enriched(spark: SparkSession, kafka: str, topic: str, folder: str, side: str) -> DataFrame:
    """Return the rows with their fields."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(f"{folder}/rows")
    if side == "ours":
        return enrich(rows, topic, "terminal", schema=FIELDS, kafka=kafka)
    entries = spark.read.parquet(f"{folder}/entries")
    return rows.join(f.broadcast(entries), rows["terminal"] == entries["_key"], "left")


def timed(frame: DataFrame) -> float:
    """Compute every column of every row, and return the seconds."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    """Measure."""
    kafka, topic, side, folder, rows = sys.argv[1:]
    if not Path(folder, "rows", "_SUCCESS").exists():
        prepare(kafka, topic, folder, int(rows))
    with session("benchmark", SparkOptions()) as spark:
        spark.read.parquet(f"{folder}/rows").count()
        frame = enriched(spark, kafka, topic, folder, side)
        first, again = timed(frame), timed(frame)
    print(json.dumps({"work_seconds": first, "again_seconds": again}))


if __name__ == "__main__":
    main()
