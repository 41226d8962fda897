"""What benchmarks of the source stand on: a Postgres with directory tables, and sources that run beside them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
import psycopg
from confluent_kafka import Consumer, TopicPartition

from compactory.kafka.client import Kafka
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.schema import Adoption, adopt, install
from compactory_sql import read

__all__ = ["CONSUMER", "TABLE", "adopted", "consuming", "filled", "postgres", "processor", "source", "wait_for"]

TABLE = "terminal_acquirer"
CONNECTOR = Path(__file__).parents[1] / "examples" / "connectors" / "terminal_acquirer.json"

CONSUMER = {"group.id": "benchmark", "fetch.wait.max.ms": 50, "enable.auto.commit": False}
"""Properties of whoever looks at the topic, the same for all that is compared; it reads what is committed."""


@contextmanager
def postgres(settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the URL of a server of its own, with Postgres' defaults but for ``settings``."""
    server = PostgresServer(settings=settings)
    try:
        server.start()
        yield server.url()
    finally:
        server.remove()


def filled(url: str, rows: int) -> None:
    """Make the article's table with so many rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(read(f"templates/{TABLE}.sql"))
        connection.execute(
            "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
            " SELECT 'T' || n, 'A' FROM generate_series(1, %s) n",
            [rows],
        )


def adopted(url: str, *tables: str) -> None:
    """Adopt tables like the article's."""
    with psycopg.connect(url, autocommit=True) as connection:
        install(connection)
        for table in tables:
            adopt(connection, Adoption(table=table, key=("terminal_id",), active="is_active"))


@contextmanager
def source(url: str, kafka: str, connectors: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Run ``compactory source run``: the article's connector, changed by each of these; yield its process id."""
    login = {"connection.url": url, "connection.user": urlsplit(url).username or "", "connection.password": ""}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{changes['topic.prefix']}.json" for changes in connectors]
        for path, changes in zip(paths, connectors, strict=True):
            path.write_text(json.dumps(json.loads(CONNECTOR.read_text()) | login | changes))
        command = [sys.executable, "-m", "compactory_cli", "source", "run", *map(str, paths), "--kafka", kafka]
        child = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.DEVNULL)
        try:
            yield child.pid
        finally:
            child.terminate()
            child.wait()


@contextmanager
def consuming(kafka: str, topic: str) -> Iterator[Consumer]:
    """Yield a consumer at the beginning of a topic's only partition."""
    consumer = Consumer({"bootstrap.servers": kafka, **CONSUMER})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        yield consumer
    finally:
        consumer.close()


def loaded(kafka: str, topic: str, consumer: Consumer, rows: int) -> None:
    """Wait until a source has made the topic, and the consumer has read so many records of it."""
    wait_for(lambda: topic in Kafka(kafka).topic_names())
    while rows > 0:
        rows -= sum(message.error() is None for message in consumer.consume(10_000, 0.5))


def processor(*pids: int) -> float:
    """Return the seconds of processor time that these processes have used."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def wait_for(condition: Callable[[], Any], timeout: float = 120.0) -> None:
    """Wait until something is true. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the source did not get that far in time")
        time.sleep(0.02)
