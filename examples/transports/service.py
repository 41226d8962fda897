"""Reads what happens to transports and has their customers told. See README.md beside this file.

The message handler makes no call: a job does, in a group for each transport, where the transport's messages are read.
"""

from __future__ import annotations

import os
import signal
import threading
import urllib.request

import psycopg
from confluent_kafka import Consumer
from pydantic import BaseModel

from compactory_connectors.jobs import Job, JobExecutor, Jobs, Retry
from compactory_connectors.outbox import Outbox

POSTGRES = os.environ.get("COMPACTORY_POSTGRES", "postgresql://postgres@localhost/postgres")
KAFKA = os.environ.get("COMPACTORY_KAFKA", "localhost:9092")
CUSTOMER = f"http://127.0.0.1:{os.environ.get('CUSTOMER_PORT', '8900')}"
EVENTS = os.environ.get("TRANSPORT_EVENTS", "transport-events")
NOTIFIED = os.environ.get("TRANSPORT_NOTIFIED", "transport-notified")

jobs = Jobs()
outbox = Outbox()


class Notify(BaseModel):
    """The message to a customer."""

    transport: str
    status: str


@jobs.handler("transport.notify", retry=Retry(max_attempts=50, first=0.5, limit=60), timeout=30)
def notify(job: Job[Notify], conn: psycopg.Connection) -> None:
    """Tell the customer; then state and message commit with the job."""
    told = job.payload
    request = urllib.request.Request(f"{CUSTOMER}/{told.transport}/status", told.status.encode(), method="POST")
    urllib.request.urlopen(request, timeout=10).close()
    conn.execute("UPDATE transports SET notified = %s WHERE id = %s", [told.status, told.transport])
    outbox.publish(conn, NOTIFIED, told.status, key=told.transport)


def handle(connection: psycopg.Connection, transport: str, status: str) -> None:
    """Store what has happened and leave the call behind, in one transaction."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO transports VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET status = excluded.status",
            [transport, status],
        )
        jobs.enqueue(
            connection,
            "transport.notify",
            Notify(transport=transport, status=status),
            group=transport,
            origin=transport,
        )


def main() -> None:
    """Read the topic until SIGTERM; run jobs of the partitions that are read here."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = Consumer(
        {"bootstrap.servers": KAFKA, "group.id": f"{EVENTS}-service", "auto.offset.reset": "earliest",
         "enable.auto.commit": False, "partition.assignment.strategy": "cooperative-sticky"}
    )  # fmt: skip
    executor = JobExecutor(POSTGRES, jobs, consumer=consumer)
    consumer.subscribe([EVENTS], on_assign=executor.on_assign, on_revoke=executor.on_revoke, on_lost=executor.on_revoke)
    with psycopg.connect(POSTGRES) as connection, executor:
        while not stop.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error():
                continue
            key, value = message.key(), message.value()
            if key and value:
                handle(connection, key.decode(), value.decode())
            consumer.commit(message, asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main()
