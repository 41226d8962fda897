"""From a commit to its message in a consumer, and what publishing costs the transaction.

``outbox_visible KAFKA bare|relay SECONDS``: 100 transactions a second, whether those before them
have been seen or not. *bare* is NOTIFY → SELECT → produce → DELETE. Prints milliseconds.
``outbox_visible KAFKA debezium SECONDS JARS``: the same through Debezium's outbox event router.
``outbox_visible publish TRANSACTIONS``: transactions of one insert, alone and with a message, in
turns. Prints seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from confluent_kafka import Consumer, Producer

from benchmarks.debezium import database, running
from benchmarks.directories import consuming, postgres
from compactory.kafka.client import Kafka
from compactory_connectors.outbox import Outbox, OutboxRelay
from compactory_connectors.schema import install

Publish = Callable[[psycopg.Connection, str, str], object]

EVENTS = """
    CREATE TABLE events (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text)"""

RATE = 100
WARM_UP = 200
LOST = 30.0


def main() -> None:
    if sys.argv[1] == "publish":
        print(json.dumps(_cost(int(sys.argv[2]))))
        return
    kafka, mode, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    topic = f"outbox-{uuid.uuid4().hex[:8]}"
    Kafka(kafka).create_topic(topic, partitions=1)
    settings = {"wal_level": "logical"} if mode == "debezium" else None
    with postgres(settings) as url:
        install(url)
        sending = _routing(url, kafka, topic, sys.argv[4]) if mode == "debezium" else _sending(url, kafka, mode)
        with sending as publish, consuming(kafka, topic) as consumer:
            taken = _taken(url, topic, consumer, int(seconds * RATE), publish)
    cuts = statistics.quantiles(taken, n=100)
    print(json.dumps({"p50_ms": cuts[49], "p99_ms": cuts[98]}))


@contextmanager
def _sending(url: str, kafka: str, mode: str) -> Iterator[Publish]:
    publish = Outbox().publish
    if mode == "relay":
        with OutboxRelay(url, kafka):
            yield publish
        return
    stop = threading.Event()
    thread = threading.Thread(target=_bare, args=(url, kafka, stop))
    thread.start()
    try:
        yield publish
    finally:
        stop.set()
        thread.join()


@contextmanager
def _routing(url: str, kafka: str, topic: str, jars: str) -> Iterator[Publish]:
    """Debezium, once a message has come through."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(EVENTS)
    prefix = f"debezium_{uuid.uuid4().hex[:8]}"
    connector = {
        **database(url, prefix),
        "publication.autocreate.mode": "filtered",
        "snapshot.mode": "no_data",
        "table.include.list": "public.events",
        "poll.interval.ms": 1,
        "tombstones.on.delete": "false",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": "${routedByValue}",
    }
    text = "org.apache.kafka.connect.storage.StringConverter"
    worker = {"bootstrap.servers": kafka, "key.converter": text, "value.converter": text, "producer.linger.ms": 0}
    with running(jars, worker, connector), consuming(kafka, topic) as consumer, psycopg.connect(url) as connection:
        for _ in range(60):
            _insert(connection, topic, "first")
            connection.commit()
            if (message := consumer.poll(2.0)) is not None and message.error() is None:
                break
        yield _insert


def _insert(connection: psycopg.Connection, topic: str, value: str) -> None:
    statement = "INSERT INTO events VALUES (gen_random_uuid(), %s, 'k', 'event', %s)"
    connection.execute(statement, [topic, value])


def _bare(url: str, kafka: str, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 0})
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN compactory_outbox")
        connection.execute("SELECT pg_advisory_lock(1129140303, 0)")  # so that every publish notifies
        while not stop.is_set():
            for _ in connection.notifies(timeout=0.5, stop_after=1):
                pass
            rows = connection.execute("SELECT id, topic, payload FROM compactory.kafka_messages ORDER BY id").fetchall()
            for _, topic, payload in rows:
                producer.produce(topic, payload)
            producer.flush()
            connection.execute("DELETE FROM compactory.kafka_messages WHERE id = ANY (%s)", [[row[0] for row in rows]])


def _taken(url: str, topic: str, consumer: Consumer, count: int, publish: Publish) -> list[float]:
    committed: dict[str, float] = {}
    writer = threading.Thread(target=_write, args=(url, topic, count, committed, publish))
    writer.start()
    seen: dict[str, float] = {}
    while str(count - 1) not in seen:
        message = consumer.poll(LOST)
        if message is None:
            raise TimeoutError(f"messages after the first {len(seen)} were not seen within {LOST:g} s")
        if message.error() is None:
            seen.setdefault((message.value() or b"").decode(), time.perf_counter())
    writer.join()
    return [(seen[str(number)] - committed[str(number)]) * 1000 for number in range(WARM_UP, count)]


def _write(url: str, topic: str, count: int, committed: dict[str, float], publish: Publish) -> None:
    with psycopg.connect(url) as connection:
        began = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            publish(connection, topic, str(number))
            connection.commit()
            committed[str(number)] = time.perf_counter()


def _cost(transactions: int) -> dict[str, float]:
    outbox = Outbox()
    spent = [0.0, 0.0]
    with postgres() as url:
        install(url)
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE orders (id int8 PRIMARY KEY, total int8)")
            connection.commit()
            for number in range(transactions * 2):
                began = time.perf_counter()
                connection.execute("INSERT INTO orders VALUES (%s, %s)", [number, 1])
                if number % 2:
                    outbox.publish(connection, "orders", b"x" * 200, key=b"k")
                connection.commit()
                spent[number % 2] += time.perf_counter() - began
    return {"alone": spent[0], "seconds": spent[1]}


if __name__ == "__main__":
    main()
