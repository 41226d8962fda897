"""From a commit to its record in a consumer.

``commit_visible KAFKA bare|bare-transactions|transactions|off SECONDS``. Single-row updates are
committed at a fixed rate, whether those before them have been seen or not. *bare* is ``bare.follow``, without and with
Kafka transactions; the others are ``compactory source run``. Prints milliseconds, and processor time a commit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from confluent_kafka import Consumer

from benchmarks.directories import TABLE, adopted, consuming, filled, loaded, postgres, processor, source
from benchmarks.stage import python
from compactory.kafka.client import Kafka

ROWS = 50_000
RATE = 100
WARM_UP = 50  # commits
LOST = 30.0
BARE = {"bare": [TABLE], "bare-transactions": [TABLE, "offsets"]}  # and the topics of each
NOTIFY = (
    "CREATE FUNCTION bare() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN PERFORM pg_notify(''bare'', NEW.id::text); RETURN NEW; END';"
    "CREATE TRIGGER bare AFTER UPDATE ON terminal_acquirer FOR EACH ROW EXECUTE FUNCTION bare()"
)


def main() -> None:
    kafka, mode, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    prefix = f"commits-{uuid.uuid4().hex[:8]}-"
    topic = f"{prefix}{TABLE}"
    with postgres() as url:
        filled(url, ROWS)
        with _follower(url, kafka, prefix, mode) as pid, consuming(kafka, topic) as consumer:
            loaded(kafka, topic, consumer, 0 if mode in BARE else ROWS)
            time.sleep(1)  # the source has done with its load
            before = processor(pid)
            taken = _taken(url, consumer, int(seconds * RATE))
            used = processor(pid) - before
    cuts = statistics.quantiles(taken, n=100)
    print(json.dumps({"p50_ms": cuts[49], "p99_ms": cuts[98], "cpu_ms": used * 1000 / len(taken)}))


@contextmanager
def _follower(url: str, kafka: str, prefix: str, mode: str) -> Iterator[int]:
    """Run what is measured; yield its process id."""
    if mode not in BARE:
        adopted(url, TABLE)
        off = {"compactory.transactions": "off"} if mode == "off" else {}
        with source(url, kafka, [{"topic.prefix": prefix, **off}]) as pid:
            yield pid
        return
    topics = [f"{prefix}{name}" for name in BARE[mode]]
    for topic in topics:
        Kafka(kafka).create_topic(topic, partitions=1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(NOTIFY)
    child = subprocess.Popen(python("bare.follow", url, kafka, *topics), stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
    finally:
        child.terminate()
        child.wait()


def _taken(url: str, consumer: Consumer, count: int) -> list[float]:
    """Commit so many updates; return the milliseconds that each took to be seen, but for the first ones."""
    committed: dict[str, float] = {}
    writer = threading.Thread(target=_write, args=(url, count, committed))
    writer.start()
    seen: dict[str, float] = {}
    while len(seen) < count:
        message = consumer.poll(LOST)
        if message is None:
            raise TimeoutError(f"{count - len(seen)} commits were not seen within {LOST:g} s")
        if message.error() is None:
            value = str(json.loads(message.value() or b"{}")["acquirerId"])
            seen.setdefault(value, time.perf_counter())
    writer.join()
    values = [f"v{number}" for number in range(WARM_UP, count)]
    return [(seen[value] - committed[value]) * 1000 for value in values]


def _write(url: str, count: int, committed: dict[str, float]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        began = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            value = f"v{number}"
            connection.execute(
                "UPDATE terminal_acquirer SET acquirer_id = %s WHERE id = %s", [value, number * 97 % ROWS + 1]
            )
            committed[value] = time.perf_counter()


if __name__ == "__main__":
    main()
