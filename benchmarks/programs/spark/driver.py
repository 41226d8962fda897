"""The memory of a driver that loads CSV files, while executors of another process do the work.

Usage: spark.driver DSN TABLE FOLDER. Prints rows, files, the seconds, and the peaks of the driver's JVM and of its
Python in MB, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from benchmarks.programs.spark.load import load, timed
from compactory_connectors.spark.session import SparkOptions, session

OPTIONS = SparkOptions(
    master="local-cluster[1,2,2048]",
    conf={
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.executor.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
    },
)


def peak_mb(process: int) -> int:
    """Return the most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def main() -> None:
    """Measure."""
    dsn, table, folder = sys.argv[1:]
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with session("benchmark", OPTIONS) as spark:
        own = os.getpid()
        [jvm] = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        seconds, report = timed(lambda: load(spark, dsn, table, folder))
        peaks = {"jvm_mb": peak_mb(int(jvm)), "python_mb": peak_mb(own)}
    print(json.dumps({"rows": report.read, "files": report.files, "seconds": seconds, **peaks}))


if __name__ == "__main__":
    main()
