"""From a commit to its message in a consumer, and what publishing costs the transaction.

``python -m benchmarks._outbox_visible KAFKA bare|relay SECONDS``: 100 transactions a second, whether those before them
have been seen or not. *bare* is NOTIFY → SELECT → produce → DELETE. Prints milliseconds.
``python -m benchmarks._outbox_visible publish TRANSACTIONS``: transactions of one insert, alone and with a message, in
turns. Prints seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from confluent_kafka import Consumer, Producer

from benchmarks.directories import consuming, postgres
from compactory.kafka.client import Kafka
from compactory_connectors.database import install
from compactory_connectors.outbox import Outbox, OutboxRelay

RATE = 100
WARM_UP = 50
LOST = 30.0


def main() -> None:
    if sys.argv[1] == "publish":
        print(json.dumps(_cost(int(sys.argv[2]))))
        return
    kafka, mode, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    topic = f"outbox-{uuid.uuid4().hex[:8]}"
    Kafka(kafka).create_topic(topic, partitions=1)
    with postgres() as url:
        install(url)
        with _sending(url, kafka, mode), consuming(kafka, topic) as consumer:
            taken = _taken(url, topic, consumer, int(seconds * RATE))
    cuts = statistics.quantiles(taken, n=100)
    print(json.dumps({"p50_ms": cuts[49], "p99_ms": cuts[98]}))


@contextmanager
def _sending(url: str, kafka: str, mode: str) -> Iterator[None]:
    if mode == "relay":
        with OutboxRelay(url, kafka):
            yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_bare, args=(url, kafka, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


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


def _taken(url: str, topic: str, consumer: Consumer, count: int) -> list[float]:
    committed: dict[str, float] = {}
    writer = threading.Thread(target=_write, args=(url, topic, count, committed))
    writer.start()
    seen: dict[str, float] = {}
    while len(seen) < count:
        message = consumer.poll(LOST)
        if message is None:
            raise TimeoutError(f"{count - len(seen)} messages were not seen within {LOST:g} s")
        if message.error() is None:
            seen.setdefault((message.value() or b"").decode(), time.perf_counter())
    writer.join()
    return [(seen[str(number)] - committed[str(number)]) * 1000 for number in range(WARM_UP, count)]


def _write(url: str, topic: str, count: int, committed: dict[str, float]) -> None:
    outbox = Outbox()
    with psycopg.connect(url) as connection:
        began = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            outbox.publish(connection, topic, str(number))
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
