"""Single-row commits that a source keeps up with: ``commits_kept_up KAFKA RATE SECONDS``.

pgbench commits single-row updates, RATE a second (0: as many as there can be), each flushed as Postgres does by
default. Meanwhile a marker is committed twenty times a second, and how old it is when a consumer sees it, or a later
one, is the lag. At the end topic and table are compared. Prints commits a second, the lag in both halves, and processor
time a commit.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import Consumer

from benchmarks.directories import TABLE, adopted, consuming, filled, postgres, processor, source, wait_for
from compactory.kafka.client import Kafka
from compactory_cli.stack.postgres import embedded_binaries

ROWS = 50_000
MARKERS = 20  # a second
WRITERS = 8
LONGEST = 60.0  # seconds for what is left when the writers are done
MARK = "UPDATE terminal_acquirer SET acquirer_id = %s WHERE id = 1"
SCRIPT = f"""\\set id random(2, {ROWS})
\\set value random(1, 1000000000)
UPDATE terminal_acquirer SET acquirer_id = :value::text WHERE id = :id;
"""


class Follower:
    """Reads the topic in a thread of its own: the last value of each row, and when markers were seen."""

    def __init__(self, consumer: Consumer) -> None:
        self.values: dict[int, str] = {}
        self.seen: dict[str, float] = {}
        self._consumer = consumer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(2000, 0.02):
                if message.error() is not None:
                    continue
                row, value = int(message.key() or b"0"), json.loads(message.value() or b"{}")["acquirerId"]
                self.values[row] = value
                if row == 1:
                    self.seen.setdefault(value, time.perf_counter())


def main() -> None:
    kafka, rate, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    prefix = f"kept-up-{uuid.uuid4().hex[:8]}-"
    with postgres() as url:
        filled(url, ROWS)
        adopted(url, TABLE)
        with source(url, kafka, [{"topic.prefix": prefix}]) as pid, consuming(kafka, f"{prefix}{TABLE}") as consumer:
            wait_for(lambda: f"{prefix}{TABLE}" in Kafka(kafka).topic_names())
            follower = Follower(consumer)
            try:
                wait_for(lambda: len(follower.values) == ROWS)
                before = processor(pid)
                figures = _written(url, rate, seconds, follower)
                print(json.dumps(figures | {"cpu_ms": (processor(pid) - before) * 1000 / figures["commits"]}))
            finally:
                follower.close()


def _written(url: str, rate: int, seconds: int, follower: Follower) -> dict[str, Any]:
    """Write for so long; return what came of it."""
    committed: dict[str, float] = {}
    stop = threading.Event()
    marker = threading.Thread(target=_mark, args=(url, stop, committed))
    marker.start()
    began = time.perf_counter()
    commits = _pgbench(url, rate, seconds)
    ended = time.perf_counter()
    stop.set()
    marker.join()
    last = f"m{len(committed) - 1}"
    wait_for(lambda: last in follower.seen or time.perf_counter() - ended > LONGEST)
    caught_up = time.perf_counter() - ended
    half = began + (ended - began) / 2
    lags = list(_lags(committed, follower.seen))
    halves = [lag for at, lag in lags if at < half], [lag for at, lag in lags if at >= half]
    return {
        "commits": commits + len(committed),
        "rate": (commits + len(committed)) / (ended - began),
        "first_half_ms": statistics.median(halves[0]) * 1000,
        "second_half_ms": statistics.median(halves[1]) * 1000,
        "longest_ms": max(lag for _, lag in lags) * 1000,
        "caught_up_seconds": caught_up,
        "equal": _equal(url, follower),
    }


def _lags(committed: dict[str, float], seen: dict[str, float]) -> Iterator[tuple[float, float]]:
    """When each marker was committed, and how long it took until it or a later one was seen."""
    known = time.perf_counter()
    for value, at in reversed(committed.items()):
        known = min(known, seen.get(value, known))
        yield at, known - at


def _equal(url: str, follower: Follower) -> bool:
    """Say whether the topic gets to hold what the table holds."""
    with psycopg.connect(url) as connection:
        rows: dict[int, str] = dict(connection.execute("SELECT id, acquirer_id FROM terminal_acquirer").fetchall())
    deadline = time.monotonic() + LONGEST
    while follower.values != rows and time.monotonic() < deadline:
        time.sleep(0.05)
    return follower.values == rows


def _mark(url: str, stop: threading.Event, committed: dict[str, float]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.wait(1 / MARKERS):
            value = f"m{len(committed)}"
            connection.execute(MARK, [value])
            committed[value] = time.perf_counter()


def _pgbench(url: str, rate: int, seconds: int) -> int:
    """Have pgbench commit for so long; return how often it did."""
    parts = urlsplit(url)
    command = [str(embedded_binaries() / "pgbench"), "--no-vacuum", "--protocol=prepared", f"--client={WRITERS}"]
    command += [f"--time={seconds}", f"--host={parts.hostname}", f"--port={parts.port}", f"--username={parts.username}"]
    command += [f"--rate={rate}"] if rate else []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "update.sql"
        script.write_text(SCRIPT)
        done = subprocess.run(
            [*command, f"--file={script}", parts.path[1:]], check=True, capture_output=True, text=True
        )
    found = re.search(r"number of transactions actually processed: (\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


if __name__ == "__main__":
    main()
