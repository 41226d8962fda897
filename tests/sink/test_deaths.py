"""Processes that are killed at each step of a transaction, or frozen past their session: the counters are exact."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable

import pytest

from compactory_connectors.sink import SinkStopped
from compactory_connectors.sink.applying import Applying
from compactory_connectors.sink.statements import Moved, SinkTable
from tests.sink.harness import Bench
from tests.sink.mortal import BETWEEN, STEPS
from tests.source.workload import wait_until
from tests.stack.apache_kafka import ApacheKafka, needs
from tests.store.topics import Topics, send


def produced(bench: Bench, topic: str) -> Counter[str]:
    keys = [f"k{n % 4}" for n in range(20)]
    bench.produce(topic, [(key, str(n)) for n, key in enumerate(keys)], partition=0)
    return Counter(keys)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step(bench: Bench, step: str) -> None:
    """Guarantee 16: rows and offset are committed together or not at all."""
    topic = bench.topic()
    keys = produced(bench, topic)
    mortal = bench.mortal(topic, step, "SIGKILL", "group.instance.id=one")
    wait_until(mortal.ended, what="the signal")
    bench.sink(topic, properties={"group.instance.id": "one"})  # a static member is back at once
    bench.wait_for_end(topic)
    bench.compare(keys)


@pytest.mark.parametrize(
    ("strategy", "step"),
    [
        ("cooperative-sticky", BETWEEN),
        pytest.param("cooperative-sticky", "before the move", marks=pytest.mark.proof),
        pytest.param("cooperative-sticky", "before the lock", marks=pytest.mark.proof),
        pytest.param("range", "before the move", marks=pytest.mark.proof),
        pytest.param("range", "before the lock", marks=pytest.mark.proof),
    ],
)
def test_a_process_frozen_past_its_session_writes_nothing_when_it_wakes(bench: Bench, step: str, strategy: str) -> None:
    """Guarantee 16: the offset fences one with records in hand; a frozen transaction is ended by a time-out."""
    topic = bench.topic()
    assignment = f"partition.assignment.strategy={strategy}"
    keys = produced(bench, topic)
    zombie = bench.mortal(topic, step, "SIGSTOP", assignment)
    wait_until(zombie.stopped, what="the signal")
    bench.sink(topic, properties={"partition.assignment.strategy": strategy, "session.timeout.ms": 6000})
    bench.wait_for_end(topic)
    zombie.resume()
    keys += produced(bench, topic)
    bench.wait_for_end(topic)
    wait_until(lambda: rejoined(bench), what="the zombie in the group")
    bench.compare(keys)


def test_the_protocol_in_which_the_broker_assigns(bench: Bench) -> None:
    """Guarantee 16 with KIP-848, which refuses properties of the classic protocol."""
    needs(4)
    topic = bench.topic()
    keys = produced(bench, topic)
    for _ in range(2):
        bench.sink(topic, properties={"group.protocol": "consumer"})
        keys += produced(bench, topic)
    bench.wait_for_end(topic)
    bench.compare(keys)


def rejoined(bench: Bench) -> bool:
    """Whether the group has two members again."""
    admin = bench.kafka._current_client()
    group = f"compactory-sink-{bench.name}"
    return len(admin.describe_consumer_groups([group])[group].result().members) == 2


def test_without_the_condition_a_zombies_records_count_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: the tests above would see it."""
    monkeypatch.setattr(SinkTable, "lock", lambda *_: False)
    moved = 'UPDATE compactory.kafka_partitions SET "offset" = %s WHERE topic = %s'
    monkeypatch.setattr(
        SinkTable,
        "move",
        lambda self, batch, **_: self.connection.execute(moved, [batch.end, batch.partition.topic]),
    )
    topic = bench.topic()
    keys = produced(bench, topic)
    sink = bench.sink(topic)
    bench.wait_for_end(topic)
    bench.sql.execute('UPDATE compactory.kafka_partitions SET "offset" = 0')  # as another process would, or a restore
    bench.sql.execute("TRUNCATE counters, effects")
    more = produced(bench, topic)
    bench.wait_for_end(topic)
    assert bench.applied() == more != keys + more  # the first ones are lost
    assert sink.board.picture()["seeks"] == 0


def test_without_the_seek_records_are_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: a sink that goes on where it is, and not where the database is."""
    apply = Applying.apply

    def goes_on(self: Applying, batch):  # type: ignore[no-untyped-def]
        try:
            return apply(self, batch)
        except Moved:
            row = self.connection.execute('SELECT "offset" FROM compactory.kafka_partitions').fetchone()
            assert row is not None
            return apply(self, batch._replace(start=row[0]))

    monkeypatch.setattr(Applying, "apply", goes_on)
    topic = bench.topic()
    keys = produced(bench, topic)
    bench.sink(topic)
    bench.wait_for_end(topic)
    bench.sql.execute('UPDATE compactory.kafka_partitions SET "offset" = 0')
    bench.sql.execute("TRUNCATE counters, effects")
    more = produced(bench, topic)
    bench.wait_for_end(topic)
    assert bench.applied() == more != keys + more


@pytest.mark.proof
def test_a_log_that_was_cut_off_and_has_grown_since(own_kafka: ApacheKafka, bench: Bench) -> None:
    """Guarantee 16: the offset is in the log, but it is not the log that was read; leader epochs tell (KIP-320)."""
    topic = bench.topic()
    topics = Topics(own_kafka.address, bench.unique)
    log, backup = own_kafka.home / "data" / f"{topic}-0", own_kafka.home / "backup"

    def restarted(change: Callable[[], object] = lambda: None) -> None:
        own_kafka.stop()
        change()
        own_kafka.start()

    def applied() -> None:
        sink = bench.sink(topic)
        bench.wait_for_end(topic)
        sink.stop()

    topics.commit(topic, ("a", "1"), ("b", "1"))
    applied()
    restarted(lambda: shutil.copytree(log, backup))
    with topics.transaction() as producer:
        send(producer, topic, [("c", "1")], 0)
        restarted()
        producer.commit_transaction(30)  # the mark has a later epoch than the record
    applied()
    topics.commit(topic, ("d", "1"))
    applied()  # another leader alone means nothing
    restarted(lambda: (shutil.rmtree(log), shutil.move(backup, log)))
    bench.produce(topic, [(f"e{number}", "1") for number in range(10)])
    with pytest.raises(SinkStopped, match="was truncated"):
        bench.sink(topic).wait(30)
    assert bench.applied() == dict.fromkeys("abcd", 1)
