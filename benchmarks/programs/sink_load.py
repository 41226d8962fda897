"""Records of a topic into a table with an index, until the last is there.

``sink_load KAFKA bare|rows|sink|failing RECORDS``. *bare* is pipelined ``executemany`` with the
same offset rule, *rows* a statement for each record, *sink* ``compactory sink run``, *failing* the same with 1 % of the
records set aside. Prints seconds and the largest resident size.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import orjson
import psycopg

from benchmarks.directories import postgres
from compactory.kafka.client import Kafka
from compactory_connectors.database import install
from compactory_connectors.sink import Records, TransactionalSink
from compactory_connectors.sink.table.sink_config import load_sink
from compactory_connectors.sink.table.writing import table_sink

TABLE = """
CREATE TABLE accounts (id int8 PRIMARY KEY, name text NOT NULL, city text, balance int8 NOT NULL, active bool);
CREATE INDEX ON accounts (name)
"""
UPSERT = """
INSERT INTO accounts VALUES (%(id)s, %(name)s, %(city)s, %(balance)s, %(active)s)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, city = excluded.city, balance = excluded.balance,
 active = excluded.active
"""


def main() -> None:
    address, mode, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kafka, topic = Kafka(address), f"sink-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=1)
    _fill(kafka, topic, records, failing=mode == "failing")
    with postgres() as url, psycopg.connect(url, autocommit=True) as connection:
        install(url)
        connection.execute(TABLE)
        began = time.perf_counter()
        sink = _sink(mode, kafka, url, topic)
        with sink:
            while _offset(connection) != records:
                assert not sink.wait(0.02)
        seconds = time.perf_counter() - began
        row = connection.execute("SELECT count(*) FROM accounts").fetchone()
        assert row == (records - (records // 100 if mode == "failing" else 0),), row
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "megabytes": size, "records": records}))


def _sink(mode: str, kafka: Kafka, url: str, topic: str) -> TransactionalSink:
    if mode in {"bare", "rows"}:
        return TransactionalSink(kafka, url, [topic], _bare if mode == "bare" else _rows, name="bench")
    keys = {
        "name": "bench",
        "topics": topic,
        "connection.url": url,
        "insert.mode": "upsert",
        "pk.mode": "record_value",
        "pk.fields": "id",
        "table.name.format": "accounts",
        "value.converter.schemas.enable": "false",
        "errors.tolerance": "all",
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        file.write_text(json.dumps(keys))
        return table_sink(load_sink(file), kafka)


def _bare(connection: psycopg.Connection[Any], records: Records) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(UPSERT, [orjson.loads(record.value or b"") for record in records])


def _rows(connection: psycopg.Connection[Any], records: Records) -> None:
    for record in records:
        connection.execute(UPSERT, orjson.loads(record.value or b""))


def _fill(kafka: Kafka, topic: str, records: int, *, failing: bool) -> None:
    producer = kafka.producer({"linger.ms": 20, "queue.buffering.max.messages": 2_000_000}, {}, lambda _: None)
    for number in range(records):
        balance: Any = "none" if failing and number % 100 == 0 else number * 7
        value = {"id": number, "name": f"name {number}", "city": "Berlin", "balance": balance, "active": True}
        producer.produce(topic, orjson.dumps(value), str(number))
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def _offset(connection: psycopg.Connection[Any]) -> int | None:
    row = connection.execute('SELECT "offset" FROM compactory.kafka_partitions').fetchone()
    return row[0] if row else None


if __name__ == "__main__":
    main()
