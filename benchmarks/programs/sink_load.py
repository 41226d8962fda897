"""Records of a topic into a table with an index, until the last is there.

``sink_load KAFKA bare|rows|sink|failing|schema RECORDS``. *bare* is pipelined ``executemany``
with the same offset rule, *rows* a statement for each record, *sink* ``compactory sink run``, *failing* the same with
1 % of the records set aside, *schema* the same of JSON with its schema.
``sink_load KAFKA debezium RECORDS JARS``: Debezium's JDBC sink of the same topic as *schema*.
Prints records a second, those from the first row on, and the largest resident size.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psycopg

from benchmarks.debezium import running
from benchmarks.directories import postgres
from compactory.kafka.client import Kafka
from compactory_connectors.schema import install
from compactory_connectors.sink import Records, TransactionalSink
from compactory_connectors.sink.into_table.sink_config import load_sink
from compactory_connectors.sink.into_table.writer import table_sink

TABLE = """
CREATE TABLE accounts (id int8 PRIMARY KEY, name text NOT NULL, city text, balance int8 NOT NULL, active bool);
CREATE INDEX ON accounts (name)
"""
UPSERT = """
INSERT INTO accounts VALUES (%(id)s, %(name)s, %(city)s, %(balance)s, %(active)s)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, city = excluded.city, balance = excluded.balance,
 active = excluded.active
"""


SCHEMA = {
    "type": "struct",
    "optional": False,
    "fields": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "name", "type": "string", "optional": False},
        {"field": "city", "type": "string", "optional": True},
        {"field": "balance", "type": "int64", "optional": False},
        {"field": "active", "type": "boolean", "optional": True},
    ],
}


def main() -> None:
    address, mode, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kafka, topic = Kafka(address), f"sink-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=1)
    _fill(kafka, topic, records, failing=mode == "failing", schema=mode in {"schema", "debezium"})
    with postgres() as url, psycopg.connect(url, autocommit=True) as connection:
        install(url)
        connection.execute(TABLE)
        began = time.perf_counter()
        with _running(mode, kafka, url, topic, address):
            first, behind = began, 0
            while (newest := _newest(connection)) != records - 1:
                if newest is not None and not behind:
                    first, behind = time.perf_counter(), records - 1 - newest
                time.sleep(0.02)
        ended = time.perf_counter()
        row = connection.execute("SELECT count(*) FROM accounts").fetchone()
        assert row == (records - (records // 100 if mode == "failing" else 0),), row
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rate": records / (ended - began), "steady_rate": behind / (ended - first), "megabytes": size}))


def _running(mode: str, kafka: Kafka, url: str, topic: str, address: str) -> AbstractContextManager[object]:
    if mode == "debezium":
        return _debezium(url, topic, address)
    if mode in {"bare", "rows"}:
        return TransactionalSink(kafka, url, [topic], _bare if mode == "bare" else _rows, name="bench")
    return table_of(kafka, url, topic, schema=mode == "schema")


def _debezium(url: str, topic: str, address: str) -> AbstractContextManager[object]:
    place = urlsplit(url)
    connector = {
        "name": "bench",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "connection.url": f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}",
        "connection.username": place.username,
        "connection.password": "unused",
        "topics": topic,
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "id",
        "collection.name.format": "accounts",
        "schema.evolution": "none",
        "batch.size": 10_000,
        "use.reduction.buffer": "true",
        "consumer.override.max.poll.records": 10_000,
        "consumer.override.auto.offset.reset": "earliest",
    }
    worker = {
        "bootstrap.servers": address,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "connector.client.config.override.policy": "All",
    }
    return running(sys.argv[4], worker, connector)


def table_of(kafka: Kafka, url: str, topic: str, *, schema: bool = False) -> TransactionalSink:
    """Return the sink of ``TABLE``, as ``compactory sink run`` makes it."""
    keys = {
        "name": "bench",
        "topics": topic,
        "connection.url": url,
        "insert.mode": "upsert",
        "pk.mode": "record_value",
        "pk.fields": "id",
        "table.name.format": "accounts",
        "value.converter.schemas.enable": str(schema).lower(),
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


def _fill(kafka: Kafka, topic: str, records: int, *, failing: bool, schema: bool = False) -> None:
    producer = kafka.producer({"linger.ms": 20, "queue.buffering.max.messages": 2_000_000}, {}, lambda _: None)
    for number in range(records):
        balance: Any = "none" if failing and number % 100 == 0 else number * 7
        value: Any = {"id": number, "name": f"name {number}", "city": "Berlin", "balance": balance, "active": True}
        if schema:
            value = {"schema": SCHEMA, "payload": value}
        producer.produce(topic, orjson.dumps(value), str(number))
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def _newest(connection: psycopg.Connection[Any]) -> int | None:
    row = connection.execute("SELECT max(id) FROM accounts").fetchone()
    return row[0] if row else None


if __name__ == "__main__":
    main()
