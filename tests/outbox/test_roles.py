"""Publisher and relay work with just the rights of ``sql roles --for outbox``, and say which one is missing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.outbox import OutboxRelay
from compactory_connectors.outbox.operators import drop, failed_messages, retry
from compactory_connectors.outbox.status import topic_statuses
from compactory_connectors.schema import grant, plan_outbox_grants
from tests.outbox.harness import Bench
from tests.source.workload import wait_until

TABLES = ("kafka_messages", "kafka_scheduled_messages", "kafka_failed_messages", "kafka_topic_info")


@pytest.fixture
def roles(bench: Bench, unique: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """URLs of a publisher and a relay."""
    names = unique("publisher"), unique("relay")
    for _ in range(2):  # running it again changes nothing
        grant(bench.sql, plan_outbox_grants(bench.sql, *names))
    place = urlsplit(bench.url)
    yield tuple(f"postgresql://{name}@{place.hostname}:{place.port}{place.path}" for name in names)
    for name in names:
        bench.sql.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def test_publisher_and_relay_need_no_more(bench: Bench, roles: tuple[str, str]) -> None:
    publisher, relay = roles
    topic = bench.topic()
    with psycopg.connect(publisher) as conn:
        bench.outbox.publish(conn, topic, "v", key="k")
        soon = datetime.now(UTC) + timedelta(seconds=0.2)
        bench.outbox.publish(conn, topic, "later", key="k", deliver_at=soon)
    wait_until(lambda: datetime.now(UTC) > soon, what="the time of delivery")
    with OutboxRelay(relay, bench.address) as running:
        assert running.drain(threading.Event())
    assert bench.values(topic) == ["v", "later"]


def test_the_relays_role_is_the_operators(bench: Bench, roles: tuple[str, str]) -> None:
    topic = bench.topic(**{"max.message.bytes": "2000"})
    for _ in range(2):
        bench.publish(topic, random.Random(1).randbytes(5000), key="k")
    with psycopg.connect(roles[1], autocommit=True) as operator:
        for _ in range(2):
            bench.drain()
            assert [item.reason is None for item in failed_messages(operator)] == [False, True]
            (status,) = topic_statuses(operator)
            assert (status.failed, status.waiting) == (1, 1)
            assert retry(operator) == 2
        bench.drain()
        assert drop(operator, topic) == 1
        bench.drain()
        assert drop(operator, topic) == 1
        assert failed_messages(operator) == []


def test_a_publisher_can_do_nothing_else(bench: Bench, roles: tuple[str, str]) -> None:
    with psycopg.connect(roles[0], autocommit=True) as conn:
        for table in TABLES:
            for statement in (f"SELECT FROM compactory.{table}", f"DELETE FROM compactory.{table}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement)
    with psycopg.connect(roles[1], autocommit=True) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("UPDATE compactory.kafka_messages SET payload = NULL")
    with (
        psycopg.connect(roles[1]) as conn,
        pytest.raises(
            ConfigError,
            match=f"role '{urlsplit(roles[1]).username}' may not use .* `compactory sql roles --for outbox`",
        ),
    ):
        bench.outbox.publish(conn, "t", "v")


@pytest.mark.parametrize("right", ["SELECT", "DELETE"])
def test_one_right_less_and_the_relay_names_it(bench: Bench, roles: tuple[str, str], right: str) -> None:
    role = urlsplit(roles[1]).username
    bench.sql.execute(f'REVOKE {right} ON compactory.kafka_messages FROM "{role}"')
    with pytest.raises(ConfigError, match=rf"GRANT {right} ON TABLE compactory.kafka_messages TO"):
        OutboxRelay(roles[1], bench.address).start()


def test_a_role_from_before_scheduled_messages_is_told_what_it_lacks(bench: Bench, roles: tuple[str, str]) -> None:
    role = urlsplit(roles[1]).username
    bench.sql.execute(f'REVOKE ALL ON compactory.kafka_scheduled_messages FROM "{role}"')
    with pytest.raises(ConfigError, match=r"GRANT .* ON TABLE compactory.kafka_scheduled_messages TO"):
        OutboxRelay(roles[1], bench.address).start()


def test_no_right_at_all_and_the_command_that_grants_them(bench: Bench, roles: tuple[str, str]) -> None:
    role = urlsplit(roles[1]).username
    bench.sql.execute(f'REVOKE USAGE ON SCHEMA compactory FROM "{role}"')
    with pytest.raises(
        ConfigError, match=f"'{role}' may not send the outbox: .* compactory sql roles --for outbox makes"
    ):
        OutboxRelay(roles[1], bench.address).start()
