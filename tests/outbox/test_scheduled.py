"""Messages with a time of delivery: not sent before it, sent once, and found without a storm of reads."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compactory_connectors.outbox import OutboxMessage, relay
from compactory_connectors.outbox.operators import failed_messages, retry
from compactory_connectors.outbox.status import topic_statuses
from tests.outbox.harness import Bench
from tests.source.workload import wait_until

FAR = datetime(2100, 1, 1, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def make_due(bench: Bench) -> None:
    bench.sql.execute("UPDATE compactory.kafka_scheduled_messages SET deliver_at = clock_timestamp()")


def raise_size_limit(bench: Bench, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bench.address})  # must live until the result is there
    admin.incremental_alter_configs([resource])[resource].result()


def test_a_message_is_sent_at_its_time_under_its_id(bench: Bench) -> None:
    """Guarantee 14: a scheduled message exists if and only if its transaction committed, and is not sent earlier."""
    topic = bench.topic()
    with psycopg.connect(bench.url) as conn:
        bench.outbox.publish(conn, topic, "rolled back", key="k", deliver_at=later(0))
        bench.outbox.publish(conn, topic, "rolled back", key="k", deliver_at=FAR)
        conn.rollback()
    due_at = later(1.5)
    number = bench.publish(topic, "later", headers={"h": "x"}, partition_key="p", deliver_at=due_at)
    bench.publish(topic, "far", deliver_at=FAR)
    bench.publish(topic, "past", deliver_at=later(-60))
    relay = bench.relay()
    bench.publish(topic, "next")
    bench.wait_for(topic, "past", "next")  # a later message of the key does not wait
    bench.wait_for(topic, "past", "next", "later", timeout=5)
    assert datetime.now(UTC) >= due_at
    assert bench.sent(topic)[-1][:2] == (number, "k")
    assert relay.stop()
    (status,) = topic_statuses(bench.sql)
    assert (status.pending, status.scheduled) == (0, 1)


def test_messages_that_are_due_are_sent_in_the_order_of_their_times(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_DUE_BATCH", 3)
    topic = bench.topic()
    due_at = later(0.1)
    messages = [
        OutboxMessage(topic=topic, payload=f"{n}", key="k", deliver_at=due_at - timedelta(milliseconds=n % 2))
        for n in range(9)
    ]
    with bench.sql.transaction():
        ids = bench.outbox.publish_list(bench.sql, [*messages, OutboxMessage(topic=topic, payload="now", key="k")])
    assert ids == sorted(ids)
    assert topic_statuses(bench.sql)[0].scheduled == 9
    wait_until(lambda: datetime.now(UTC) > due_at, what="the time of delivery")
    bench.drain()
    assert bench.values(topic) == ["now", "1", "3", "5", "7", "0", "2", "4", "6", "8"]
    assert [record.id for record in bench.sent(topic)] == [ids[9], *ids[1:9:2], *ids[0:9:2]]
    assert bench.left() == 0


def test_relays_beside_each_other_send_a_due_message_once(bench: Bench) -> None:
    topics = [bench.topic() for _ in range(3)]
    for topic in topics:
        for n in range(200):
            bench.publish(topic, f"{n}", deliver_at=FAR)
    relays = [bench.relay() for _ in range(3)]
    make_due(bench)
    wait_until(lambda: all(len(bench.values(topic)) == 200 for topic in topics), 30, "everything is sent")
    for running in relays:
        assert running.stop()
    for topic in topics:
        assert set(Counter(record.id for record in bench.sent(topic)).values()) == {1}


def test_a_refused_message_keeps_its_id_when_it_is_sent_again(bench: Bench) -> None:
    topic = bench.topic(**{"max.message.bytes": "200"})
    number = bench.publish(topic, "x" * 300, headers={"h": bytes(range(256))}, deliver_at=FAR)
    make_due(bench)
    bench.drain()
    assert len(failed_messages(bench.sql, topic)) == 1
    raise_size_limit(bench, topic)
    assert retry(bench.sql, topic) == 1
    bench.drain()
    assert [record.id for record in bench.sent(topic)] == [number]


def test_a_relay_reads_scheduled_messages_when_they_are_due(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice a second while none is due, and not at every round of the keeper."""
    topic, reads = bench.topic(), []
    publish_due = relay._publish_due

    def counted(connection: Any) -> float:
        reads.append(datetime.now(UTC))
        return publish_due(connection)

    monkeypatch.setattr(relay, "_publish_due", counted)
    bench.publish(topic, "far", deliver_at=FAR)
    running = bench.relay()
    begun_at = datetime.now(UTC)
    for n in range(20):
        bench.publish(topic, f"{n}")
        wait_until(lambda n=n: len(bench.values(topic)) == n + 1, what="the message")
    assert running.stop()
    assert len(reads) <= 4 + 2 * (datetime.now(UTC) - begun_at).total_seconds()
