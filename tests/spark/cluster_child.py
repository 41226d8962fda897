"""Reads, loads and exports in executors of their own processes; prints JSON.

Arguments: MASTER BOOTSTRAP TOPIC POSTGRES FOLDER FAULT. FAULT is ``none`` or ``killed``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from compactory_connectors.spark import export, load, register
from compactory_connectors.spark.session import SparkOptions, session

CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
Task = Callable[[Iterator[Any]], Iterator[Any]]


def executor_pid() -> int:
    """Return the process id of the executor's JVM: the parent of the daemon that forked this worker."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def claims(file: Path) -> bool:
    """Return True for the first caller alone."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def killing(folder: Path) -> Task:
    """Return a task that kills its executor once, when its rows have been passed on."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if claims(folder / "killed"):
            os.kill(executor_pid(), signal.SIGKILL)

    return run


def kill_during(folder: Path, pid: int) -> threading.Thread:
    """Kill an executor as soon as the folder has a file."""

    def run() -> None:
        while not any(path.is_file() for path in folder.rglob("*")):
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def run(spark: SparkSession, fault: str, address: str, topic: str, url: str, folder: Path) -> dict[str, Any]:
    register(spark)
    reader = spark.read.format("compactory").option("kafka.bootstrap.servers", address).option("directory", topic)
    rows = reader.schema("code string, rate int").load()
    loaded = rows.repartition(4)  # a shuffle, whose files are lost with an executor
    if fault == "killed":
        loaded = loaded.mapInArrow(killing(folder), loaded.schema)
    report = load(spark, loaded, "tariffs", url, connections=2)
    pids = sorted({row.pid for row in spark.range(0, 64, 1, 4).mapInArrow(pids_of, "pid long").collect()})
    killer = kill_during(folder / "lake", pids[0]) if fault == "killed" else None
    exported = export(spark, topic, folder / "lake", kafka=address, columns="code string, rate int", minPartitions=4)
    if killer is not None:
        killer.join()
    lake = spark.read.parquet(exported.path)
    return {
        "read": list(rows.selectExpr("count(*)", "count(DISTINCT code)", "sum(rate)").collect()[0]),
        "loaded": [report.read, report.accepted, report.changes["insert"]],
        "exported": [exported.rows, *lake.selectExpr("count(*)", "count(DISTINCT _key)", "sum(rate)").collect()[0]],
        "executors": len(pids),
    }


def pids_of(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        time.sleep(0.2)
        yield pa.record_batch([pa.array([executor_pid()])], names=["pid"])


def main() -> None:
    master, address, topic, url, folder, fault = sys.argv[1:]
    with session("cluster", SparkOptions(master=master, conf=CONF)) as spark:
        print(json.dumps(run(spark, fault, address, topic, url, Path(folder))))


if __name__ == "__main__":
    main()
