"""Executors in processes of their own: each row is read, loaded and exported once, also where an executor is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pyspark
import pytest

from compactory_connectors.schema import install
from tests.spark.conftest import needs_spark
from tests.store.topics import Topics, eventually

NO_REST = "-Dspark.master.rest.enabled=false"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
CONNECTIONS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"


class Cluster:
    """A topic of ``keys`` keys in two partitions, a table of Postgres, and runs of ``cluster_child``."""

    def __init__(self, kafka: str, unique: Callable[[str], str], database: str, folder: Path, keys: int) -> None:
        self.kafka, self.database, self.folder, self.keys = kafka, database, folder, keys
        topics = Topics(kafka, unique)
        self.topic = topics.create(2)
        for partition in range(2):
            numbers = range(partition, keys, 2)
            old = [(f"T{number}", f'{{"code": "T{number}", "rate": -1}}') for number in numbers]
            new = [(f"T{number}", f'{{"code": "T{number}", "rate": {number}}}') for number in numbers]
            topics.produce(self.topic, *old, *new, partition=partition)
        with psycopg.connect(database, autocommit=True) as connection:
            install(connection)
            connection.execute("CREATE TABLE tariffs (code text PRIMARY KEY, rate int)")

    def run(self, master: str, fault: str = "none") -> dict[str, Any]:
        """Return what the child prints; check the rows in the table."""
        arguments = [master, self.kafka, self.topic, self.database, str(self.folder), fault]
        command = [sys.executable, "-m", "tests.spark.cluster_child", *arguments]
        done = subprocess.run(
            command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr[-6000:]
        with psycopg.connect(self.database) as connection:
            counted = connection.execute("SELECT count(*), count(DISTINCT code), sum(rate) FROM tariffs").fetchone()
        assert counted == (self.keys, self.keys, self.total)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    @property
    def total(self) -> int:
        return self.keys * (self.keys - 1) // 2

    @property
    def expected(self) -> dict[str, Any]:
        keys, total = self.keys, self.total
        return {
            "read": [keys, keys, total],
            "loaded": [keys, keys, keys],
            "exported": [keys, keys, keys, total],
            "executors": 2,
        }


@pytest.fixture
def cluster(kafka: str, unique: Callable[[str], str], database: str, tmp_path: Path) -> Cluster:
    needs_spark()
    return Cluster(kafka, unique, database, tmp_path, 2_000)


def test_executors_of_their_own_processes(cluster: Cluster) -> None:
    assert cluster.run(LOCAL_CLUSTER) == cluster.expected


class Standalone:
    """A master and two workers of a core each, as a cluster's administrator starts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.master = f"spark://127.0.0.1:{free.getsockname()[1]}"

    def start(self) -> None:
        pages = ("--webui-port", "0")
        self._start("master", *pages, "--host", "127.0.0.1", "--port", self.master.rpartition(":")[2])
        for host in ("127.0.0.1", "127.0.0.2"):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / host))
            self._start("worker", *pages, "--host", host, *size, self.master)
        eventually(lambda: (self._folder / "master.log").read_text().count("Registering worker") == 2, 180)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def _start(self, role: str, *arguments: str) -> None:
        environment = os.environ | ENVIRONMENT | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": NO_REST}
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [program, f"org.apache.spark.deploy.{role}.{role.title()}", *arguments]
        with (self._folder / f"{role}.log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Yield the URL of a master whose workers run during the block."""
    cluster = Standalone(folder)
    try:
        cluster.start()
        yield cluster.master
    finally:
        cluster.stop()


@contextmanager
def most_connections(database: str) -> Iterator[list[int]]:
    """Yield a list, which afterwards has the most connections that copied at a time."""
    seen = [0]
    ended = threading.Event()

    def watch() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not ended.wait(0.01):
                row = connection.execute(CONNECTIONS).fetchone()
                seen[0] = max(seen[0], row[0] if row else 0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("local-cluster", "killed"),
        ("standalone", "none"),
        ("standalone", "killed"),
    ],
)
def test_each_row_counts_once_where_executors_are_killed(
    kafka: str, unique: Callable[[str], str], database: str, tmp_path: Path, kind: str, fault: str
) -> None:
    needs_spark()
    cluster = Cluster(kafka, unique, database, tmp_path, 40_000)
    running = standalone(tmp_path) if kind == "standalone" else nullcontext(LOCAL_CLUSTER)
    with running as master, most_connections(database) as connections:
        result = cluster.run(master, fault)
    assert result == cluster.expected
    assert 1 <= connections[0] <= 2
    if fault == "killed":
        assert (tmp_path / "killed").exists()


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_each_row_counts_once_where_spark_speculates(
    kafka: str, unique: Callable[[str], str], database: str, tmp_path: Path
) -> None:
    """Two attempts of a task run to their ends: a table has each row once, a plain topic at least once."""
    needs_spark()
    keys = 10_000
    cluster = Cluster(kafka, unique, database, tmp_path, keys)
    with standalone(tmp_path) as master:
        result = cluster.run(master, "speculated")
    assert result["attempts"] == ["load-0", "load-1", "send-0", "send-1", "write-0", "write-1"]
    assert result["loaded"] == [keys, keys - 10, 10, keys - 10]
    assert result["rejects"] == [10, 10]
    records, distinct_keys, distinct_records = result["sent"]
    assert records >= distinct_keys == distinct_records == keys


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_each_row_counts_once_where_executors_come_and_go(
    kafka: str, unique: Callable[[str], str], database: str, tmp_path: Path
) -> None:
    """Dynamic allocation: an executor goes during a load, and all have gone before a read."""
    needs_spark()
    keys = 10_000
    cluster = Cluster(kafka, unique, database, tmp_path, keys)
    with standalone(tmp_path) as master:
        result = cluster.run(master, "dynamic")
    assert result == {
        "read": [keys, keys, cluster.total],
        "loaded": [keys, keys, keys],
        "most executors": 2,
        "came again": True,
    }
