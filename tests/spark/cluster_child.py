"""Reads, loads and exports in executors of their own processes; prints JSON.

Arguments: MASTER BOOTSTRAP TOPIC POSTGRES FOLDER FAULT. FAULT is ``none``, ``killed``, ``speculated`` or ``dynamic``.
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

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from compactory.kafka.client import Kafka
from compactory_connectors.spark import export, load, register
from compactory_connectors.spark.session import SparkOptions, session

CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.efficiency.enabled": "false",  # a task that waits has read nothing to judge it by
    "spark.locality.wait": "0",
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.executor.cores": "1",
}
CONF_OF_FAULT = {"speculated": SPECULATION, "dynamic": DYNAMIC}
DEADLINE = 120.0  # seconds
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


def await_file(file: Path) -> None:
    """Wait until the file exists. Raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} was not made")
        time.sleep(0.02)


def twice(folder: Path, name: str) -> Task:
    """Return a task that Spark runs twice for the first partition: the first attempt waits until the second begins."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            (folder / f"{name}-{context.attemptNumber()}").touch()
            await_file(folder / f"{name}-1")
        yield from batches

    return run


def run_speculated(rows: DataFrame, address: str, topic: str, url: str, folder: Path) -> dict[str, Any]:
    """Load, write and send rows, each time with a task that Spark speculates on."""

    def slow(name: str) -> DataFrame:
        return rows.repartition(4).mapInArrow(twice(folder, name), rows.schema)

    spark = rows.sparkSession
    rules, rejects = folder / "rules.yaml", folder / "rejects"
    rules.write_text("columns: {rate: {min: 10}}")
    report = load(spark, slow("load"), "tariffs", url, rules=rules, rejects=rejects)
    slow("write").write.format("compactory").mode("append").options(url=url, table="tariffs").save()
    plain = {"kafka.bootstrap.servers": address, "topic": f"{topic}-sent"}
    Kafka(address).create_topic(plain["topic"], partitions=2, config={"cleanup.policy": "compact"})
    slow("send").selectExpr("code AS _key", "rate").write.format("compactory").mode("append").options(**plain).save()
    sent = spark.read.format("compactory").options(**plain, raw="true").load()
    counts = sent.selectExpr("count(*)", "count(DISTINCT key)", "count(DISTINCT key, value)").collect()[0]
    return {
        "loaded": [report.read, report.accepted, report.rejected, report.changes["insert"]],
        "rejects": list(spark.read.json(str(rejects)).selectExpr("count(*)", "count(DISTINCT record)").collect()[0]),
        "sent": list(counts),
        "attempts": sorted(path.name for path in folder.glob("*-[0-9]")),
    }


class Executors(threading.Thread):
    """Notes how many executors there are, and makes a file once one of two has gone."""

    def __init__(self, spark: SparkSession, gone: Path) -> None:
        super().__init__(daemon=True)
        self._status = spark.sparkContext._jsc.sc()
        self._gone = gone
        self.counts: list[int] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            count = self._status.getExecutorMemoryStatus().size() - 1  # the driver is one of them
            if not self.counts or self.counts[-1] != count:
                self.counts.append(count)
            if 2 in self.counts and count < 2:
                self._gone.touch()

    def await_none(self) -> None:
        """Wait until all executors have gone. Raises TimeoutError."""
        deadline = time.monotonic() + DEADLINE
        while self.counts[-1]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"executors: {self.counts}")
            time.sleep(0.05)


def run_dynamic(rows: DataFrame, url: str, folder: Path) -> dict[str, Any]:
    """Load rows while an executor goes, with its shuffle files and cached rows; read them once all have gone."""

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            await_file(folder / "gone")
        yield from batches

    executors = Executors(rows.sparkSession, folder / "gone")
    executors.start()
    report = load(rows.sparkSession, rows.repartition(4).mapInArrow(slow, rows.schema), "tariffs", url)
    executors.await_none()
    first = list(executors.counts)
    read = rows.selectExpr("count(*)", "count(DISTINCT code)", "sum(rate)").collect()[0]
    executors.ended.set()
    executors.join()
    return {
        "read": list(read),
        "loaded": [report.read, report.accepted, report.changes["insert"]],
        "most executors": max(first),
        "came again": max(executors.counts[len(first) :]) > 0,
    }


def run(spark: SparkSession, fault: str, address: str, topic: str, url: str, folder: Path) -> dict[str, Any]:
    register(spark)
    reader = spark.read.format("compactory").option("kafka.bootstrap.servers", address).option("directory", topic)
    rows = reader.schema("code string, rate int").load()
    if fault == "speculated":
        return run_speculated(rows, address, topic, url, folder)
    if fault == "dynamic":
        return run_dynamic(rows, url, folder)
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
    conf = CONF | CONF_OF_FAULT.get(fault, {})
    with session("cluster", SparkOptions(master=master, conf=conf)) as spark:
        print(json.dumps(run(spark, fault, address, topic, url, Path(folder))))


if __name__ == "__main__":
    main()
