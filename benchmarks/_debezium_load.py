"""A first load by Debezium in Kafka Connect's standalone worker, with the transforms that make the article's records.

Usage: _debezium_load JARS DSN BOOTSTRAP ROWS. Makes a topic of its own. Timed from the first record to the last:
neither the start of the JVM nor that of the connector counts. Prints rows and seconds as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from compactory.kafka.client import Kafka
from compactory.records import Partition

LOST = 600.0  # seconds
TRANSFORMS = "org.apache.kafka.connect.transforms."
NAMES = {
    "terminal_id": "terminalId",
    "acquirer_id": "acquirerId",
    "is_active": "isActive",
    "updated_date": "updatedDate",
}


def worker(bootstrap: str, folder: Path) -> dict[str, object]:
    """Return the worker's properties; its producer has the bare loop's."""
    return {
        "bootstrap.servers": bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": folder / "offsets",
        "listeners": "http://127.0.0.1:0",
        "producer.linger.ms": 20,
        "producer.compression.type": "lz4",
        "producer.batch.size": 1_000_000,
        "producer.buffer.memory": 134_217_728,
    }


def connector(dsn: str, prefix: str) -> dict[str, object]:
    """Return the connector's properties."""
    place = urlsplit(dsn)
    return {
        "name": "debezium",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": place.hostname,
        "database.port": place.port,
        "database.user": place.username,
        "database.password": "unused",
        "database.dbname": place.path.lstrip("/"),
        "plugin.name": "pgoutput",
        "slot.name": prefix,
        "slot.drop.on.stop": "true",
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "initial_only",
        "table.include.list": "public.terminal_acquirer",
        "topic.prefix": prefix,
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


def written(path: Path, properties: dict[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


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
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        files = [
            written(folder / "worker.properties", worker(bootstrap, folder)),
            written(folder / "connector.properties", connector(dsn, prefix)),
        ]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = ["java", "-Xms1g", "-Xmx1g", quiet, "-cp", f"{jars}/*"]
        process = subprocess.Popen(
            [*command, "org.apache.kafka.connect.cli.ConnectStandalone", *files], stdout=sys.stderr
        )
        try:
            seconds = timed(kafka, topic, int(rows), process)
        finally:
            process.terminate()
            process.wait(60)
    print(json.dumps({"rows": int(rows), "seconds": seconds}))


if __name__ == "__main__":
    main()
