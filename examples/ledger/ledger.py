"""Counts payments: every record of the topic exactly once. See README.md beside this file."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import psycopg

from compactory_connectors.sink import RecordRefused, Records, TransactionalSink

POSTGRES = os.environ.get("COMPACTORY_POSTGRES", "postgresql://postgres@localhost/postgres")
KAFKA = os.environ.get("COMPACTORY_KAFKA", "localhost:9092")
TOPIC = os.environ.get("LEDGER_TOPIC", "payments")
INSTANCE = os.environ.get("LEDGER_INSTANCE")  # of a static member, whose partitions wait for it while it starts anew

COUNT = """
INSERT INTO accounts VALUES (%(account)s, 1, %(cents)s)
ON CONFLICT (account) DO UPDATE SET payments = accounts.payments + 1, total = accounts.total + excluded.total
"""


def count(connection: psycopg.Connection[Any], records: Records) -> None:
    """Count payments within the sink's transaction."""
    payments = [json.loads(record.value or b"null") for record in records]
    if not all(isinstance(payment, dict) and {"account", "cents"} <= payment.keys() for payment in payments):
        raise RecordRefused("is no payment: account or cents is missing")
    with connection.cursor() as cursor:
        cursor.executemany(COUNT, payments)


def main() -> None:
    """Count until SIGTERM."""
    properties = {"group.instance.id": INSTANCE} if INSTANCE else {}
    sink = TransactionalSink(KAFKA, POSTGRES, [TOPIC], count, name="ledger", batch=500, properties=properties)
    signal.signal(signal.SIGTERM, lambda *_: sink.stop())
    with sink:
        sink.wait()


if __name__ == "__main__":
    main()
