"""The tour after the story: a payment goes through outbox, processor and sink, and its receipt is a job."""

from __future__ import annotations

from importlib import resources
from typing import Any

import psycopg

from compactory import GlobalStore
from compactory.kafka.client import Kafka
from compactory_connectors.schema import install

from .stage import Stage

__all__ = ["start_tour", "tour"]

_PUBLISHED, _APPROVED, _REFUSED = "payments", "payments_approved", "payments_refused"


def start_tour(stage: Stage) -> None:
    """Create tables and topics of the payments, and start the workers."""
    with stage.connect() as connection:
        install(connection)
        connection.execute((resources.files("compactory_cli.demo") / "payments.sql").read_bytes())
    kafka = Kafka(stage.broker.address)
    for topic in (_PUBLISHED, _APPROVED, _REFUSED):
        kafka.create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    ledger = [] if stage.lacks else [str(stage.home.folder / "ledger.json")]
    listen = stage.urls["workers"].removeprefix("http://")
    servers = stage.postgres.url(), stage.broker.address
    stage.run_module("workers", "compactory_cli.demo.workers", *servers, listen, *ledger)


def tour(stage: Stage) -> None:
    """Insert two payments and print what each worker does with them. Raises StepFailed, Unreachable, Ended."""
    with stage.connect() as connection, GlobalStore(stage.broker.address, [_PUBLISHED, _APPROVED, _REFUSED]) as store:
        published, approved, refused = store[_PUBLISHED], store[_APPROVED], store[_REFUSED]
        with stage.step("outbox", "publishing a payment") as step:
            connection.execute("INSERT INTO payments (terminal_id, amount) VALUES ('T42', 19.99), ('T43', 2500)")
            stage.wait(lambda: "2" in published, "the relay has not sent the payments")
            step.result = "payments inserted and published in one transaction; the relay has sent them to a topic"
        if stage.lacks:
            stage.tell({"left out": ["process", "sink"], "reason": stage.lacks}, f" [yellow]![/] {_left_out(stage)}")
        else:
            with stage.step("process", "checking the payments") as step:
                stage.wait(lambda: "1" in approved and "2" in refused, "the processor has not checked the payments")
                step.result = f"a function has approved payment 1, and refused payment 2: {refused['2']['error']}"
            with stage.step("sink", "writing approved payments to a table") as step:
                row = _await_row(stage, connection, "SELECT terminal_id, amount FROM ledger WHERE payment_id = '1'")
                step.result = f"payment 1 is in the table ledger: {row[0]}, {row[1]}; from the topic {_APPROVED}"
        with stage.step("job", "sending a receipt") as step:
            [attempt] = _await_row(stage, connection, "SELECT attempt FROM receipts WHERE payment_id = 1")
            step.result = f"the receipt is sent, in attempt {attempt}: in attempt 1 the mail server was down"


def _await_row(stage: Stage, connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    """Return the first row of a query once there is one."""
    rows: list[tuple[Any, ...]] = []

    def has_row() -> bool:
        rows[:] = connection.execute(query.encode()).fetchall()
        return bool(rows)

    stage.wait(has_row, f"no row yet of {query}", pause=0.01)
    return rows[0]


def _left_out(stage: Stage) -> str:
    return f"processor and sink are left out, for the embedded broker serves no consumer groups ({stage.lacks})"
