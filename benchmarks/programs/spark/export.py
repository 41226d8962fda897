"""A topic exported to Parquet, by us or by Spark's own Kafka connector and ``max_by`` per key.

Usage: spark.export BOOTSTRAP TOPIC ours|connector. The connector's side writes key and value; ours fields in columns,
key, partition, offset and timestamp. Prints keys, seconds of the job and of a second one in the same
session, and those that Spark took to start, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.stage import LAUNCHED, WORK
from compactory import Directory
from compactory_cli.stack.maven import fetch
from compactory_connectors.spark.exporting import export
from compactory_connectors.spark.session import SparkOptions, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ours(spark: SparkSession, kafka: str, topic: str, path: str) -> int:
    """Export and return the number of keys."""
    directory = Directory(topic, active="isActive")
    return export(spark, directory, path, kafka=kafka).rows


def connector(spark: SparkSession, kafka: str, topic: str, path: str) -> int:
    """The same by Spark's Kafka connector; return the number of keys."""
    from pyspark.sql import functions as f

    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic, "kafka.isolation.level": "read_committed"}
    records = spark.read.format("kafka").options(**options).load()
    newest = f.max_by("value", f.struct("timestamp", "offset")).alias("value")
    records.groupBy("key").agg(newest).where("value IS NOT NULL").write.parquet(path)
    return spark.read.parquet(path).count()  # from the files' footers


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """Do the work and return the seconds that it took."""
    began = time.perf_counter()
    keys = work()
    return time.perf_counter() - began, keys


def connector_options() -> SparkOptions:
    """Return the options of a session with Spark's Kafka connector, fetched on first use."""
    jars = WORK / "spark-kafka"
    if not jars.exists():
        pom = Path(__file__).parents[2] / "spark" / "pom.xml"
        fetch("Spark's Kafka connector", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={jars}")
    return SparkOptions(conf={"spark.jars": ",".join(map(str, jars.glob("*.jar")))})


def main() -> None:
    """Measure."""
    kafka, topic, side = sys.argv[1:]
    work = {"ours": ours, "connector": connector}[side]
    options = connector_options() if side == "connector" else SparkOptions()
    WORK.mkdir(parents=True, exist_ok=True)
    with session("benchmark", options) as spark, tempfile.TemporaryDirectory(dir=WORK) as folder:
        started = time.time() - float(os.environ.get(LAUNCHED, time.time()))
        seconds, keys = timed(lambda: work(spark, kafka, topic, f"{folder}/first"))
        again, _ = timed(lambda: work(spark, kafka, topic, f"{folder}/second"))
    print(json.dumps({"keys": keys, "seconds": seconds, "again_seconds": again, "start_seconds": started}))


if __name__ == "__main__":
    main()
