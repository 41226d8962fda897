"""From a record that is produced to its committed row, 100 records a second.

``sink_visible KAFKA SECONDS``. A trigger notifies of each row. The first record is awaited before the others are
produced, as the sink joins its group until then. Prints milliseconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import uuid

import psycopg

from benchmarks.directories import postgres
from benchmarks.programs.sink_load import TABLE, table_of
from compactory.kafka.client import Kafka
from compactory_connectors.schema import install

NOTIFY = """
CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN PERFORM pg_notify('written', NEW.id::text); RETURN NULL; END$$;
CREATE TRIGGER told AFTER INSERT OR UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION told();
LISTEN written
"""
RATE = 100
WARM_UP = 50
LOST = 30.0


def main() -> None:
    address, count = sys.argv[1], int(float(sys.argv[2]) * RATE)
    kafka, topic = Kafka(address), f"sink-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions=1)
    with postgres() as url, psycopg.connect(url, autocommit=True) as connection:
        install(url)
        connection.execute(TABLE)
        connection.execute(NOTIFY)
        produced: dict[str, float] = {}
        seen: dict[str, float] = {}
        joined = threading.Event()
        with table_of(kafka, url, topic):
            producing = threading.Thread(target=_produce, args=(kafka, topic, count, produced, joined))
            producing.start()
            for told in connection.notifies(timeout=LOST + count / RATE):
                seen[told.payload] = time.perf_counter()
                joined.set()
                if len(seen) == count:
                    break
            producing.join()
    if len(seen) < count:
        raise TimeoutError(f"rows after the first {len(seen)} were not seen within {LOST:g} s")
    taken = [(seen[number] - produced[number]) * 1000 for number in map(str, range(WARM_UP, count))]
    cuts = statistics.quantiles(taken, n=100)
    print(json.dumps({"p50_ms": cuts[49], "p99_ms": cuts[98]}))


def _produce(kafka: Kafka, topic: str, count: int, produced: dict[str, float], joined: threading.Event) -> None:
    producer = kafka.producer({"linger.ms": 0}, {}, lambda _: None)
    began = 0.0
    for number in range(count):
        if number == 1:
            joined.wait(LOST)
            began = time.perf_counter() - 1 / RATE
        time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        produced[str(number)] = time.perf_counter()
        value = {"id": number, "name": f"name {number}", "city": "Berlin", "balance": number * 7, "active": True}
        producer.produce(topic, json.dumps(value), str(number))
        producer.poll(0)
    producer.flush(LOST)


if __name__ == "__main__":
    main()
