"""What idle tables cost.

``source_idle KAFKA TABLES INTERVAL_MS adopted|as_is quiet|busy CONNECTORS``. Prints statements a
second, as Postgres counts them, and the shares of a core that the source and its backends use. *busy*: another table
gets 200 commits a second, so that no two snapshots are the same.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.directories import CONSUMER, TABLE, adopted, postgres, processor, source, wait_for
from compactory.kafka.client import Kafka
from compactory_sql import read

SECONDS = 20.0
CALM = 10.0  # after the last row was published
ROWS = 500
RATE = 200
STATEMENTS = """SELECT coalesce(sum(s.calls), 0)::int8 FROM pg_stat_statements AS s
 JOIN pg_roles AS r ON r.oid = s.userid WHERE r.rolname = 'source'"""
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE usename = 'source'"


def main() -> None:
    kafka, tables, interval, kind, bustle, connectors = sys.argv[1:]
    names = [f"directory_{number}" for number in range(int(tables))]
    with postgres({"shared_preload_libraries": "pg_stat_statements"}) as url:
        _make(url, names)
        if kind == "adopted":
            adopted(url, *names)
        prefix = f"idle-{uuid.uuid4().hex[:8]}-"
        share = -(-len(names) // int(connectors))
        groups = [names[start : start + share] for start in range(0, len(names), share)]
        settings = [
            {
                "name": f"{prefix}{number}",
                "topic.prefix": f"{prefix}{number}-",
                "table.whitelist": ",".join(group),
                "poll.interval.ms": interval,
            }
            for number, group in enumerate(groups)
        ]
        other = url.replace("postgres@", "source@")
        with source(other, kafka, settings) as pid, _commits(url) if bustle == "busy" else nullcontext():
            topics = [f"{changes['topic.prefix']}{name}" for changes in settings for name in _names(changes)]
            wait_for(lambda: _records(kafka, topics) >= ROWS * len(names), 300)
            time.sleep(CALM)
            print(json.dumps(_measure(url, pid)))


def _names(connector: dict[str, str]) -> list[str]:
    return connector["table.whitelist"].split(",")


def _records(kafka: str, topics: list[str]) -> int:
    """How far these topics have got, those that are not there yet left out."""
    client = Kafka(kafka)
    there = client.topic_names()
    with closing(Consumer({"bootstrap.servers": kafka, **CONSUMER})) as consumer:
        places = [TopicPartition(topic, 0) for topic in topics if topic in there]
        return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)


def _measure(url: str, pid: int) -> dict[str, float]:
    with psycopg.connect(url, autocommit=True) as connection:
        backends = [backend for (backend,) in connection.execute(BACKENDS)]
        before = (time.perf_counter(), _calls(connection), processor(pid), processor(*backends))
        time.sleep(SECONDS)
        after = (time.perf_counter(), _calls(connection), processor(pid), processor(*backends))
    seconds, calls, ours, theirs = (later - earlier for earlier, later in zip(before, after, strict=True))
    return {"statements": calls / seconds, "source_cpu": ours / seconds * 100, "server_cpu": theirs / seconds * 100}


def _calls(connection: psycopg.Connection) -> int:
    row = connection.execute(STATEMENTS).fetchone()
    assert row is not None
    return int(row[0])


def _make(url: str, names: list[str]) -> None:
    template = read(f"templates/{TABLE}.sql")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements; CREATE ROLE source LOGIN SUPERUSER")
        connection.execute("CREATE TABLE others (n int)")
        for name in names:
            connection.execute(template.replace(TABLE, name))
            connection.execute(
                f"INSERT INTO {name} (terminal_id, acquirer_id) SELECT 'T' || n, 'A' FROM generate_series(1, {ROWS}) n"
            )


@contextmanager
def _commits(url: str) -> Iterator[None]:
    stop = threading.Event()

    def commit() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.wait(1 / RATE):
                connection.execute("INSERT INTO others VALUES (1)")

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
