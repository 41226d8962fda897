"""A first load by Debezium in Kafka Connect's standalone worker, with the transforms that make the article's records.

Usage: debezium_load JARS DSN BOOTSTRAP ROWS. Makes a topic of its own. Timed from the first record to the last:
neither the start of the JVM nor that of the connector counts. Prints rows and seconds as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid

from benchmarks.debezium import TRANSFORMS, database, running
from compactory.kafka.client import Kafka
from compactory.records import Partition

LOST = 600.0  # seconds
NAMES = {
    "terminal_id": "terminalId",
    "acquirer_id": "acquirerId",
    "is_active": "isActive",
    "updated_date": "updatedDate",
}


def worker(bootstrap: str) -> dict[str, object]:
    """Return the worker's properties; its producer has the bare loop's."""
    return {
        "bootstrap.servers": bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "producer.linger.ms": 20,
        "producer.compression.type": "lz4",
        "producer.batch.size": 1_000_000,
        "producer.buffer.memory": 134_217_728,
    }


def connector(dsn: str, prefix: str) -> dict[str, object]:
    """Return the connector's properties."""
    return {
        **database(dsn, prefix),
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "initial_only",
        "table.include.list": "public.terminal_acquirer",
        "max.batch.size": 20_480,
        "max.queue.size": 81_920,
        "snapshot.fetch.size": 10_240,
        "transforms": "unwrap,names,take,stamp",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.names.type": f"{TRANSFORMS}ReplaceField$Value",
        "transforms.names.renames": ",".join(f"{old}:{new}" for old, new in NAMES.items()),
        "transforms.take.type": f"{TRANSFORMS}ExtractField$Key",
        "transforms.take.field": "id",
        "transforms.stamp.type": f"{TRANSFORMS}TimestampConverter$Value",
        "transforms.stamp.field": "updatedDate",
        "transforms.stamp.target.type": "string",
        "transforms.stamp.format": "yyyy-MM-dd HH:mm:ss.SSS",
        "transforms.stamp.unix.precision": "microseconds",
    }


def timed(kafka: Kafka, topic: str, rows: int, process: subprocess.Popen[bytes]) -> float:
    """Return the seconds between the first record and the last. Raises RuntimeError when the worker ends before."""
    partition, first, deadline = Partition(topic, 0), 0.0, time.monotonic() + LOST
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with code {process.returncode}")
        end = kafka.high_watermarks([partition])[partition]
        now = time.perf_counter()
        first = first or (now if end else 0.0)
        if end >= rows:
            return now - first
        time.sleep(0.02)
    raise TimeoutError("the load did not end")


def main() -> None:
    jars, dsn, bootstrap, rows = sys.argv[1:5]
    prefix = f"debezium_{uuid.uuid4().hex[:8]}"
    kafka, topic = Kafka(bootstrap), f"{prefix}.public.terminal_acquirer"
    kafka.create_topic(topic, partitions=1)
    with running(jars, worker(bootstrap), connector(dsn, prefix)) as process:
        seconds = timed(kafka, topic, int(rows), process)
    print(json.dumps({"rows": int(rows), "seconds": seconds}))


if __name__ == "__main__":
    main()
