"""A message that Kafka has twice takes effect once, for readers that note the ids of an outbox."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.jobs import Jobs
from compactory_connectors.outbox import Outbox, OutboxRelay
from compactory_connectors.postgres.handled import MESSAGE_ID, note_handled
from compactory_connectors.sink import Records
from tests.sink.harness import Bench
from tests.source.workload import wait_until

SEND_AGAIN = """
INSERT INTO compactory.kafka_messages (id, topic, key, payload) OVERRIDING SYSTEM VALUE VALUES (%s, %s, 'k', 'v')
"""


def test_what_an_outbox_sends_again_enqueues_one_job(bench: Bench) -> None:
    """From the outbox to a job: the relay sends a message twice, as after a fail-over that lost its delete."""
    topic, jobs = bench.topic(), Jobs()
    jobs.declare("tell")
    with bench.sql.transaction():
        number = Outbox().publish(bench.sql, topic, "v", key="k")
    send(bench)
    bench.sql.execute(SEND_AGAIN, [number, topic])
    bench.sql.execute("UPDATE compactory.kafka_topic_info SET reached = 0")
    send(bench)
    seen: list[int] = []

    def enqueue(connection: psycopg.Connection[Any], records: Records) -> None:
        ids = [dict(record.headers)[MESSAGE_ID].decode() for record in records]
        new = note_handled(connection, "teller", topic, ids)
        for record, message in zip(records, ids, strict=True):
            seen.append(record.offset)
            if message in new:
                new.discard(message)
                jobs.enqueue(connection, "tell", {"offset": record.offset})

    bench.sink(topic, enqueue)
    wait_until(lambda: len(seen) == 2, what="the message and its repetition")
    bench.wait_for_end(topic)
    assert bench.rows("SELECT payload FROM compactory.jobs WHERE type = 'tell'") == [({"offset": 0},)]


def send(bench: Bench) -> None:
    relay = OutboxRelay(bench.url, bench.address)
    relay.start()
    try:
        assert relay.drain(threading.Event())
    finally:
        assert relay.stop()


def test_ids_are_noted_with_the_callers_transaction(bench: Bench) -> None:
    with psycopg.connect(bench.url) as conn:
        assert note_handled(conn, "reader", "t", ["1", "2", "1"]) == {"1", "2"}
        conn.rollback()
        assert note_handled(conn, "reader", "t", ["2"]) == {"2"}
        assert note_handled(conn, "reader", "t", ["1", "2"]) == {"1"}
        assert note_handled(conn, "another", "t", ["1"]) == {"1"}
        assert note_handled(conn, "reader", "t", []) == set()
        conn.execute("UPDATE compactory.kafka_handled_messages SET handled_at = now() - interval '8 days'")
        assert note_handled(conn, "reader", "t", ["3"]) == {"3"}
        row = conn.execute("SELECT count(*) FROM compactory.kafka_handled_messages").fetchone()
        assert row == (2,)  # old ones go a few at a time


def test_missing_migrations_and_rights_are_told(database: str) -> None:
    with psycopg.connect(database) as conn, pytest.raises(ConfigError, match="compactory sql install"):
        note_handled(conn, "reader", "t", ["1"])
