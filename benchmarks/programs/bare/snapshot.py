"""The bare loop of a first load: COPY of JSON that Postgres writes into a producer, row by row. No offsets.

Usage: bare.snapshot DSN BOOTSTRAP. Makes a topic of its own. Prints rows, seconds and processor time as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid

import psycopg
from confluent_kafka import Producer

from compactory.kafka.client import Kafka

QUERY = """COPY (SELECT id, json_build_object('id', id, 'terminalId', terminal_id, 'acquirerId', acquirer_id,
                        'isActive', is_active, 'updatedDate', to_char(updated_date, 'YYYY-MM-DD HH24:MI:SS.MS'))::text
                   FROM terminal_acquirer ORDER BY updated_date, id) TO STDOUT"""
CLIENT = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "enable.idempotence": True,
    "queue.buffering.max.messages": 2_000_000,
    "batch.num.messages": 100_000,
}


def load(dsn: str, bootstrap: str, topic: str) -> int:
    """Send every row; return how many there were."""
    producer = Producer({"bootstrap.servers": bootstrap, **CLIENT})
    rows = 0
    with psycopg.connect(dsn) as connection, connection.cursor().copy(QUERY) as copy:
        for line in copy:
            key, value = bytes(line).rstrip(b"\n").split(b"\t", 1)
            while True:
                try:
                    producer.produce(topic, key=key, value=value)
                    break
                except BufferError:
                    producer.poll(0.05)
            rows += 1
            if rows % 5_000 == 0:
                producer.poll(0)
    producer.flush()
    return rows


def main() -> None:
    dsn, bootstrap = sys.argv[1:3]
    topic = f"bare-load-{uuid.uuid4().hex[:8]}"
    Kafka(bootstrap).create_topic(topic, partitions=1)
    began, used = time.perf_counter(), time.process_time()
    rows = load(dsn, bootstrap, topic)
    found = {"rows": rows, "seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
