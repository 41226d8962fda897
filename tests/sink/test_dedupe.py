"""A message that Kafka has twice takes effect once, for readers that remember the ids of an outbox."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.jobs import Jobs
from compactory_connectors.outbox import Outbox, OutboxRelay
from compactory_connectors.postgres.handled import MESSAGE_ID, note_handled
from compactory_connectors.sink import Records
from compactory_connectors.sink.into_table.sink_config import load_sink
from compactory_connectors.sink.into_table.writer import table_sink
from compactory_connectors.sink.operators import failed_records, retry
from tests.sink.harness import Bench, count
from tests.source.workload import wait_until

SEND_AGAIN = """
INSERT INTO compactory.kafka_messages (id, topic, key, payload) OVERRIDING SYSTEM VALUE VALUES (%s, %s, 'k', 'v')
"""


def produce(bench: Bench, topic: str, messages: Iterable[tuple[str, str, int | None]]) -> None:
    for key, value, number in messages:
        headers = None if number is None else [(MESSAGE_ID, str(number))]
        bench.producer.produce(topic, value, key, headers=headers)
    assert bench.producer.flush(30) == 0


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_repeated_message_is_applied_once(bench: Bench, parallel: int) -> None:
    topic, other = bench.topic(), bench.topic()
    produce(bench, topic, [("a", "1", 1), ("b", "2", 2), ("a", "1", 1), ("c", "no id", None), ("c", "no id", None)])
    produce(bench, other, [("a", "another message", 1)])
    sink = bench.sink([topic, other], dedupe=True, parallel=parallel)
    bench.wait_for_end(topic)
    bench.wait_for_end(other)
    assert bench.applied() == {"a": 2, "b": 1, "c": 2}
    assert sink.stop()
    produce(bench, topic, [("b", "2", 2), ("a", "3", 3)])
    bench.sink([topic, other], dedupe=True, parallel=parallel)
    bench.wait_for_end(topic)
    assert bench.applied() == {"a": 3, "b": 1, "c": 2}


def test_a_tables_rows_are_inserted_once(bench: Bench, tmp_path: Path) -> None:
    topic, file = bench.topic(), tmp_path / "sink.json"
    bench.sql.execute("CREATE TABLE log (n int4)")
    keys = {"table.name.format": "log", "value.converter.schemas.enable": "false", "compactory.dedupe": "true"}
    file.write_text(json.dumps({"topics": topic, "connection.url": bench.url, **keys}))
    sink = table_sink(load_sink(file), bench.kafka)
    sink.start()
    try:
        for last in (3, 5):  # the rows of a batch are made before its turn
            produce(bench, topic, [("k", f'{{"n": {number}}}', number) for number in range(last)])
            bench.name = sink.name
            bench.wait_for_end(topic)
            assert bench.rows("SELECT n FROM log ORDER BY n") == [(number,) for number in range(last)]
    finally:
        assert sink.stop()


def refuses(connection: psycopg.Connection[Any], records: Records) -> None:
    bad = [record for record in records if record.value == b"bad"]
    if any(record.key == b"raised" for record in bad):
        raise ValueError
    for record in bad:
        records.set_aside(record, "it is bad")
    count(connection, [record for record in records if record not in bad])  # type: ignore[arg-type]


def test_a_message_that_was_set_aside_is_not_handled_yet(bench: Bench) -> None:
    topic = bench.topic()
    produce(bench, topic, [("raised", "bad", 1), ("aside", "bad", 2), ("aside", "bad", 2), ("a", "3", 3)])
    sink = bench.sink(topic, refuses, dedupe=True)
    bench.wait_for_end(topic)
    assert sink.stop()
    assert {item.key for item in failed_records(bench.sql, bench.name)} == {b"raised", b"aside"}
    assert retry(bench.sql, bench.name)
    bench.sink(topic, dedupe=True)
    wait_until(lambda: not failed_records(bench.sql, bench.name), what="the retry")
    assert bench.applied() == {"raised": 1, "aside": 1, "a": 1}


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
        for record in records:
            seen.append(record.offset)
            jobs.enqueue(connection, "tell", {"offset": record.offset})

    for dedupe in (True, False):
        sink = bench.sink(topic, enqueue, name=bench.unique("sink"), dedupe=dedupe)
        wait_until(lambda: sink.board.picture()["rows"], what="the records")  # noqa: B023
        assert sink.stop()
    assert seen == [0, 0, seen[-1]]


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
