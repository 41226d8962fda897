"""The process beside the demo's source: relay, executor, processor and sink, which would be four in production.

python -m compactory_cli.demo.workers POSTGRES KAFKA HOST:PORT [LEDGER.json]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from compactory.kafka.client import Kafka
from compactory.worker import Worker
from compactory_api.http.listen import Listen
from compactory_api.ops.listener import Listener
from compactory_connectors.jobs import Job, JobExecutor, Jobs, Retry
from compactory_connectors.jobs.status import JobsWorker
from compactory_connectors.outbox import OutboxRelay
from compactory_connectors.outbox.status import OutboxWorker
from compactory_connectors.processors import Event, Failed, ProcessRunner, ProcessWorker, processor
from compactory_connectors.sink import TransactionalSink
from compactory_connectors.sink.into_table.sink_config import load_sink
from compactory_connectors.sink.into_table.writer import table_sink
from compactory_connectors.sink.status import SinkWorker

from ..context.worker import stopping

_LIMIT = 1000  # payments of more are refused

jobs = Jobs()


@jobs.handler("receipt.send", retry=Retry(first=0.1, limit=5.0))
def send_receipt(job: Job[Any], connection: psycopg.Connection[Any]) -> None:
    """Store that the receipt was sent; the first attempt always fails."""
    if job.attempt == 1:
        raise ConnectionError("the mail server is down")
    connection.execute(
        "INSERT INTO receipts (payment_id, attempt) VALUES (%s, %s)", [job.payload["payment"], job.attempt]
    )


@processor("payments", created="payments_approved", failed="payments_refused")
def approve_payment(event: Event) -> Mapping[str, Any] | None:
    """Return the approved payment. Raises Failed for a payment above the limit."""
    payment: Mapping[str, Any] | None = event.value
    if payment is not None and payment["amount"] > _LIMIT:
        raise Failed(f"more than {_LIMIT}")
    return payment


def main(postgres: str, bootstrap: str, listen: str, *ledger: str) -> None:
    """Run all until a signal; processor and sink only with the file of the sink. Raises the error of one that ends."""
    kafka = Kafka(bootstrap)
    relay, executor = OutboxRelay(postgres, kafka, threads=2), JobExecutor(postgres, jobs, concurrency=4)
    workers: list[Worker] = [OutboxWorker(relay), JobsWorker(executor)]
    group_workers: list[ProcessRunner | TransactionalSink] = []
    for path in ledger:
        runner, sink = ProcessRunner(kafka, approve_payment), table_sink(load_sink(Path(path)), kafka)
        group_workers += [runner, sink]
        workers += [ProcessWorker(runner), SinkWorker(sink)]
    with stopping() as stop, Listener(Listen.parse(listen), workers), ExitStack() as running:
        for part in (relay, executor, *group_workers):
            running.enter_context(part)
        while not stop.wait(0.1):
            for group_worker in group_workers:
                group_worker.wait(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
