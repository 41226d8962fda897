"""Loads of several sizes by executors of their own; prints what the driver holds meanwhile. Arguments: POSTGRES FOLDER.

The memory is the driver's live heap, measured after a full collection again and again, at its peak.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from compactory_connectors.spark import load
from compactory_connectors.spark.session import SparkOptions, session
from tests.spark.cluster_child import CONF

INTERVAL = 0.2  # seconds
SIZES = {"warm-up": (10_000, 1), "few rows": (10_000, 1), "many rows": (1_000_000, 1), "many files": (10_000, 1_000)}
"""Rows and files of each load."""


def write_files(folder: Path, rows: int, files: int) -> None:
    folder.mkdir()
    for file in range(files):
        lines = [f"T{number},{number}" for number in range(file, rows, files)]
        (folder / f"{file}.csv").write_text("code,rate\n" + "\n".join(lines) + "\n")


@contextmanager
def peak_heap(spark: SparkSession) -> Iterator[list[int]]:
    """Yield a list, which afterwards has the most MB that were alive in the driver's heap."""
    jvm = spark.sparkContext._jvm
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            memory.gc()
            peak[0] = max(peak[0], memory.getHeapMemoryUsage().getUsed() >> 20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def main() -> None:
    url, place = sys.argv[1:]
    peaks: dict[str, int] = {}
    with session("driver", SparkOptions(master="local-cluster[1,2,1024]", conf=CONF)) as spark:
        for name, (rows, files) in SIZES.items():
            folder = Path(place) / name
            write_files(folder, rows, files)
            with peak_heap(spark) as peak:
                report = load(spark, folder, "tariffs", url)
            assert report.accepted == rows, (name, report.accepted)
            peaks[name] = peak[0]
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
