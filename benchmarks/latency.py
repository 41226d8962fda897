"""Commit → visible: 300 single-row updates on a table of 50,000 rows, from COMMIT to the answer of a lookup.

The source runs in a process of its own (``compactory source run``), store and writer in this one. Beside it a bare
loop: trigger NOTIFY → SELECT → produce → consume, without offsets, transactions or restarts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.rows import Row
from benchmarks.stage import Comparison, Measured, Stage, Terms
from compactory import Directory, GlobalStore
from compactory.kafka import Kafka
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.database import Adoption, adopt, install
from compactory_sql import read

ROWS = 50_000
UPDATES = 300
WARM_UP = 30
PAUSE = 0.01
LOST = 30.0
CONNECTOR = Path(__file__).parents[1] / "examples" / "connectors" / "terminal_acquirer.json"


def comparisons(_terms: Terms) -> dict[str, Comparison]:
    """Return what is compared, by name."""
    return {"latency": _latency}


def _latency(stage: Stage) -> Measured:
    """Measure on a Postgres of its own; no rounds: each side makes hundreds of updates."""
    server = PostgresServer()
    try:
        server.start()
        url = server.url()
        _fill(url)
        bare = _bare(url, stage.kafka)
        rows = [_row("commit → consumed, bare loop", bare)]
        for name, settings, wanted in (
            ("commit → visible, transactions", {}, (10.0, 30.0)),
            ("commit → visible, transactions off", {"compactory.transactions": "off"}, None),
        ):
            rows.append(_row(name, _ours(url, stage.kafka, settings), bare, wanted))
        return Measured(rows, {})
    finally:
        server.remove()


def _row(
    name: str, taken: list[float], bare: list[float] | None = None, wanted: tuple[float, float] | None = None
) -> Row:
    p50, p99 = _percentiles(taken)
    beside = "" if bare is None else "bare loop p50 {:.1f} ms, p99 {:.1f} ms".format(*_percentiles(bare))
    return Row(
        what=name,
        figure=f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
        beside=beside,
        ratio=None if bare is None else p50 / _percentiles(bare)[0],
        wanted="" if wanted is None else f"p50 ≤ {wanted[0]:g}, p99 ≤ {wanted[1]:g} ms",
        met=None if wanted is None else p50 <= wanted[0] and p99 <= wanted[1],
    )


def _percentiles(taken: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(taken, n=100)
    return cuts[49], cuts[98]


def _fill(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(read("templates/terminal_acquirer.sql"))
        connection.execute(
            "INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
            " SELECT 'T' || n, 'A' FROM generate_series(1, %s) n",
            [ROWS],
        )


def _updates(url: str, visible: Callable[[int, str], bool]) -> list[float]:
    """Milliseconds from each COMMIT until ``visible(row, value)``."""
    taken = []
    own = uuid.uuid4().hex[:6]
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(UPDATES + WARM_UP):
            row, value = number * 97 % ROWS + 1, f"{own}-{number}"
            connection.execute("UPDATE terminal_acquirer SET acquirer_id = %s WHERE id = %s", [value, row])
            committed = time.perf_counter()
            while not visible(row, value):
                if time.perf_counter() - committed > LOST:
                    raise TimeoutError(f"update {number} was not seen within {LOST:g} s")
            taken.append((time.perf_counter() - committed) * 1000)
            time.sleep(PAUSE)
    return taken[WARM_UP:]


def _ours(url: str, kafka: str, settings: dict[str, str]) -> list[float]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TRIGGER IF EXISTS bare ON terminal_acquirer")
        install(connection)
        adopt(connection, Adoption(table="terminal_acquirer", key=("terminal_id",), active="is_active"))
    prefix = f"latency-{uuid.uuid4().hex[:8]}-"
    topic = f"{prefix}terminal_acquirer"
    with _source(url, kafka, prefix, settings):
        _wait_for(lambda: topic in Kafka(kafka).topic_names())
        with GlobalStore(kafka, [Directory("terminals", topic=topic)]) as store:
            view = store["terminals"]
            _wait_for(lambda: len(view) == ROWS)

            def visible(row: int, value: str) -> bool:
                time.sleep(0.0002)
                return bool(view[str(row)]["acquirerId"] == value)

            return _updates(url, visible)


@contextmanager
def _source(url: str, kafka: str, prefix: str, settings: dict[str, str]) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{prefix}.json"
        own = {"connection.url": url, "connection.user": "postgres", "connection.password": "", "topic.prefix": prefix}
        path.write_text(json.dumps(json.loads(CONNECTOR.read_text()) | own | settings))
        command = [sys.executable, "-m", "compactory_cli", "source", "run", str(path), "--kafka", kafka]
        child = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.DEVNULL, env={**os.environ})
        try:
            yield
        finally:
            child.terminate()
            child.wait()


def _bare(url: str, kafka: str) -> list[float]:
    topic = f"latency-bare-{uuid.uuid4().hex[:8]}"
    Kafka(kafka).create_topic(topic, partitions=1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION bare() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_notify(''bare'', NEW.id::text); RETURN NEW; END';"
            "CREATE TRIGGER bare AFTER UPDATE ON terminal_acquirer FOR EACH ROW EXECUTE FUNCTION bare()"
        )
    command = [sys.executable, "-m", "benchmarks._bare_follow", url, kafka, topic]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "bare", "fetch.wait.max.ms": 50})
    try:
        assert child.stdout is not None
        child.stdout.readline()
        consumer.assign([TopicPartition(topic, 0, 0)])

        def visible(_row: int, value: str) -> bool:
            message = consumer.poll(1.0)
            return message is not None and f'"{value}"'.encode() in (message.value() or b"")

        return _updates(url, visible)
    finally:
        consumer.close()
        child.terminate()
        child.wait()


def _wait_for(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the source did not load the table in time")
        time.sleep(0.02)
