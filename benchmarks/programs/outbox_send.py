"""Messages that wait in an outbox, until Kafka has all of them and the table is empty.

``outbox_send KAFKA bare|relay|held TOPICS MESSAGES``. *bare* is the algorithm written plainly:
SELECT 1,000 in order of ids, send, flush, DELETE, until there are none. *held* is the relay while a transaction holds a
snapshot under which as many messages were deleted before. A tenth as many messages are sent before: the first ones of a
topic cost a broker 40 ms of processor, which are no relay's. Postgres has 1 GB of shared buffers on all sides: its
default of 128 MB holds less than half of the table. Prints seconds, and seconds of processor.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid

import psycopg
from confluent_kafka import Producer

from benchmarks.directories import postgres
from compactory.kafka.client import Kafka
from compactory_connectors.outbox import OutboxRelay
from compactory_connectors.schema import install

BYTES = 200
FILL = """
    INSERT INTO compactory.kafka_messages (topic, key, payload)
    SELECT (%s::text[])[i %% %s + 1], convert_to((i %% 10000)::text, 'UTF8'), convert_to(repeat('x', %s), 'UTF8')
      FROM generate_series(1, %s) AS i"""


def main() -> None:
    kafka, mode, topics, messages = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    names = [f"outbox-{uuid.uuid4().hex[:8]}-{number}" for number in range(topics)]
    for name in names:
        Kafka(kafka).create_topic(name, partitions=1)
    with postgres({"shared_buffers": "1GB"}) as url:
        install(url)
        with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as holder:
            send = _bare if mode == "bare" else _relay
            connection.execute(FILL, [names, topics, BYTES, messages // 10])
            send(url, kafka)
            fill = [names, topics, BYTES, messages]
            if mode == "held":
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT FROM compactory.kafka_messages")
                connection.execute(FILL, fill)
                _relay(url, kafka)
            connection.execute(FILL, fill)
            connection.execute("VACUUM ANALYZE compactory.kafka_messages")
            began, before = time.perf_counter(), time.process_time()
            send(url, kafka)
            seconds = time.perf_counter() - began
            left = connection.execute("SELECT count(*) FROM compactory.kafka_messages").fetchone()
            assert left == (0,), left
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() - before, "messages": messages}))


def _relay(url: str, kafka: str) -> None:
    with OutboxRelay(url, kafka) as relay:
        relay.drain(threading.Event())


def _bare(url: str, kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "compression.type": "lz4"})
    with psycopg.connect(url, autocommit=True) as connection:
        for (topic,) in connection.execute("SELECT DISTINCT topic FROM compactory.kafka_messages").fetchall():
            while _bare_batch(connection, producer, topic) == 1000:
                pass


def _bare_batch(connection: psycopg.Connection, producer: Producer, topic: str) -> int:
    statement = "SELECT id, key, payload FROM compactory.kafka_messages WHERE topic = %s ORDER BY id LIMIT 1000"
    rows = connection.execute(statement, [topic], binary=True).fetchall()
    for _, key, payload in rows:
        producer.produce(topic, payload, key)
    producer.flush()
    ids = [row[0] for row in rows]
    connection.execute("DELETE FROM compactory.kafka_messages WHERE topic = %s AND id = ANY (%s)", [topic, ids])
    return len(rows)


if __name__ == "__main__":
    main()
