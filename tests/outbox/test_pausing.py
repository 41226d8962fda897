"""Paused topics in running relays, and the operator log of the outbox."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg
import pytest

from compactory.errors import CompactoryError
from compactory_connectors.outbox import OutboxRelay
from compactory_connectors.outbox.operators import drop, pause, resume, retry
from compactory_connectors.outbox.status import OutboxWorker
from compactory_connectors.postgres.operator_log import operator_log
from tests.outbox.harness import Bench
from tests.source.workload import wait_until


def shows(relay: OutboxRelay, *topics: str) -> bool:
    """Return True if status and metrics have exactly these pauses."""
    worker = OutboxWorker(relay)
    samples = next(metric.samples for metric in worker.metrics() if metric.name == "compactory_paused")
    paused = [{"part": "outbox", "name": topic} for topic in topics]
    return worker.status()["paused"] == paused and samples == {("outbox", topic): 1.0 for topic in topics}


def acts(bench: Bench) -> list[tuple[Any, ...]]:
    """Lines of the log, oldest first."""
    return [(line.action, line.object, line.count) for line in reversed(operator_log(bench.sql, "outbox"))]


def test_two_relays_obey_within_a_second_and_send_other_topics(bench: Bench) -> None:
    """A topic with a steady flow stops; after a restart too. Resumed, it sends everything in order."""
    paused, other = bench.topic(), bench.topic()
    relays = [bench.relay() for _ in range(2)]
    published = threading.Event()

    def flow() -> None:
        with psycopg.connect(bench.url, autocommit=True) as conn:
            for number in range(3000):
                with conn.transaction():
                    bench.outbox.publish(conn, paused, str(number), key="k")
                if published.is_set():
                    return

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        wait_until(lambda: sum(relay.board.picture()["sent"].get(paused, 0) for relay in relays) > 20, what="the flow")
        begun_at = time.monotonic()
        assert pause(bench.sql, paused).has_changed
        wait_until(lambda: all(shows(relay, paused) for relay in relays), 1.0, "the pause in both")
        wait_until(lambda: bench.info(paused, "locked_by") is None, 1.0, "the release of the topic")
        assert time.monotonic() - begun_at < 1.0
        count = len(bench.sent(paused))
        bench.publish(other, "x")
        bench.wait_for(other, "x")
        waiting = bench.left()
        wait_until(lambda: bench.left() > waiting, what="more messages")
    finally:
        published.set()
        thread.join()
    assert len(bench.sent(paused)) == count
    assert relays[0].stop()
    later = bench.relay()
    bench.publish(other, "y")
    bench.wait_for(other, "x", "y")
    assert shows(later, paused)
    assert len(bench.sent(paused)) == count
    assert bench.info(paused, "locked_by") is None
    assert not pause(bench.sql, paused).has_changed
    assert resume(bench.sql, paused)
    wait_until(lambda: shows(relays[1]) and shows(later), 1.0, "the resume in both")
    wait_until(lambda: bench.left() == 0, what="the rest")
    values = bench.values(paused)
    assert values == [str(number) for number in range(len(values))]
    assert not resume(bench.sql, paused)


def test_once_fails_for_a_paused_topic_and_sends_the_others(bench: Bench) -> None:
    paused, other = bench.topic(), bench.topic()
    pause(bench.sql, paused)
    bench.publish(paused, "x")
    bench.publish(other, "y")
    with pytest.raises(CompactoryError, match=f"topic '{paused}' is paused: compactory outbox resume {paused}$"):
        bench.drain()
    bench.wait_for(other, "y")
    assert bench.values(paused) == []


def test_a_topic_that_was_not_seen_is_accepted_with_a_warning(bench: Bench) -> None:
    topic = bench.topic()
    bench.publish(topic, "x")
    assert pause(bench.sql, topic).warning is None
    bench.drain(topics=[bench.topic()])
    resume(bench.sql, topic)
    bench.drain()
    result = pause(bench.sql, f"{topic}s")
    assert result == (True, f"no topic '{topic}s' was seen yet: did you mean {topic}?")


def test_each_act_leaves_a_line_in_its_transaction(bench: Bench) -> None:
    topic = bench.topic(**{"max.message.bytes": "2000"})
    for key in ("a", "a", "b"):
        bench.publish(topic, random.Random(1).randbytes(5000), key=key)
    bench.drain()
    ids = bench.sql.execute("SELECT id FROM compactory.kafka_failed_messages WHERE reason IS NOT NULL ORDER BY id")
    numbers = [row[0] for row in ids]
    assert drop(bench.sql, ids=numbers[-1:], by="alice") == 1
    with pytest.raises(CompactoryError):
        retry(bench.sql, ids=[0])
    with bench.sql.transaction(force_rollback=True):
        drop(bench.sql, topic)
    count = retry(bench.sql, topic)
    pause(bench.sql, topic)
    pause(bench.sql, topic)
    resume(bench.sql, topic)
    assert acts(bench) == [
        ("drop", {"topic": topic, "ids": numbers[-1:]}, 1),
        ("retry", {"topic": topic}, count),
        ("pause", {"topic": topic}, 1),
        ("resume", {"topic": topic}, 1),
    ]
    role = f"({bench.sql.info.user}@{bench.sql.info.dbname})"
    assert operator_log(bench.sql)[-1].who == f"alice {role}"
