"""Where the parts of a source meet: polls and sweeps, refusals, holds, locks and orders that meet each other."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compactory.errors import CompactoryError
from compactory.store_worker import HEARTBEATS_TOPIC
from compactory_connectors.kafka.publisher import Publisher, TopicRefused
from compactory_connectors.schema import install
from compactory_connectors.source.config.connector import SoftDelete
from compactory_connectors.source.offsets.offset_parts import ResendReason
from compactory_connectors.source.offsets.stored_offsets import read_offsets
from compactory_connectors.source.polling.reader import RecordBatch
from compactory_connectors.source.removals.sweeper import Sweeper
from compactory_connectors.source.runtime import poll_preparation
from compactory_connectors.source.runtime.session import Session
from compactory_connectors.source.status.board import StatusBoard
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench, Running, paused_within_a_load
from tests.source.removals.test_removals import ROWS, held, living, status
from tests.source.workload import TERMINALS, wait_until
from tests.stack.apache_kafka import new_admin

TABLE = "public.terminal_acquirer"
NEVER = {"poll_interval_ms": 3_600_000}
HALF_INACTIVE = "UPDATE terminal_acquirer SET is_active = false WHERE id > 50"
EVERY_INACTIVE = "UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id > 50"


def wait_for(running: Running, state: SourceState) -> None:
    """Wait until the table is in this state."""
    wait_until(lambda: any(table.state is state for table in running.source.status().tables), 60, state.name)


def still_to_be_swept(bench: Bench) -> bool:
    """Whether the stored offset says so."""
    [stored] = [each.offset for each in read_offsets(bench.kafka) if each.connector == bench.prefix]
    assert stored is not None
    return stored.sweep


def deactivate(bench: Bench, number: int) -> None:
    bench.sql.execute("UPDATE terminal_acquirer SET is_active = false WHERE id = %s", [number])


@contextmanager
def refusing(bench: Bench, topic: str) -> Iterator[None]:
    """Brokers take no record of the topic, but the marks that end transactions."""
    admin = new_admin({"bootstrap.servers": bench.kafka.bootstrap})

    def alter(value: str | None, how: AlterConfigOpType) -> None:
        entry = ConfigEntry("max.message.bytes", value, incremental_operation=how)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()

    alter("100", AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(None, AlterConfigOpType.DELETE)


@contextmanager
def locked(bench: Bench) -> Iterator[None]:
    """Somebody keeps the table from being read."""
    with psycopg.connect(bench.url) as holder:
        holder.execute("LOCK TABLE terminal_acquirer")
        yield


def at_the_end_of_a_sweep(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Act once, when the first sweep has found what vanished and not removed it."""
    run, acted = Sweeper.run, threading.Event()

    def observed(sweeper: Sweeper) -> Generator[None, None, Any]:
        found = yield from run(sweeper)
        if found.vanished and not acted.is_set():
            acted.set()
            action()
        return found

    monkeypatch.setattr(Sweeper, "run", observed)


def test_a_removal_that_commits_while_another_is_left_to_a_sweep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 10: the poll at the end of a sweep sends the tombstones that it finds."""
    bench.sql.execute(ROWS.format(100))
    bench.sql.execute(HALF_INACTIVE)
    bench.once(soft_delete=True)
    with bench.sql.transaction():
        bench.sql.execute(EVERY_INACTIVE)
        deactivate(bench, 1)
    at_the_end_of_a_sweep(monkeypatch, lambda: deactivate(bench, 2))
    bench.once(soft_delete=True, **NEVER)
    assert living(bench) == set(range(3, 51))


def test_what_a_sweep_has_found_is_found_again_when_it_could_not_be_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 10: the table was locked when the sweep came to its end."""
    bench.sql.execute(ROWS.format(40))
    bench.once()
    bench.sql.execute("DELETE FROM terminal_acquirer WHERE id = 7")
    lock = locked(bench)
    at_the_end_of_a_sweep(monkeypatch, lock.__enter__)
    running = bench.start(sweep_interval_ms=300)
    wait_for(running, SourceState.WAITING)
    lock.__exit__(None, None, None)
    wait_until(lambda: 7 not in living(bench), what="the tombstone")


def test_a_topic_that_refused_a_row_is_swept_by_what_was_sent_since(bench: Bench) -> None:
    """Guarantee 9: the offset of a sweep is that of the last poll, and nothing is sent again."""
    bench.sql.execute(ROWS.format(100))
    bench.sql.execute(HALF_INACTIVE)
    running = bench.start(soft_delete=True)
    bench.wait_for_records(50)
    bench.add("".join(map(str, range(400_000))))
    wait_for(running, SourceState.FAILED)
    bench.sql.execute("UPDATE terminal_acquirer SET terminal_id = 'short' WHERE id = 101")
    wait_until(lambda: 101 in living(bench), 90, "the row")
    with bench.sql.transaction():
        bench.sql.execute(EVERY_INACTIVE)
        deactivate(bench, 1)
        deactivate(bench, 101)
    wait_until(lambda: living(bench) == set(range(2, 51)), what="the removal")
    bench.add("last")
    wait_until(lambda: 102 in living(bench), what="another poll")
    wait_until(lambda: not still_to_be_swept(bench), what="an offset that says that all was removed")
    running.stop()
    assert len(bench.records()) == len(set(bench.records())) == 100 + 1 + 2 + 1


def test_what_was_compared_and_then_held_is_sent_when_it_is_approved(bench: Bench) -> None:
    """Guarantee 8: a row of a poll that was not published counts as sent in no later one."""
    values = SoftDelete("is_active", tombstone=False)
    bench.sql.execute(ROWS.format(40))
    bench.once(soft_delete=values)
    bench.sql.execute("DROP TABLE terminal_acquirer")
    bench.sql.execute("DROP FUNCTION stamp")
    bench.sql.execute(TERMINALS)
    bench.sql.execute(ROWS.format(40))
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B', is_active = id > 20")
    running = bench.start(soft_delete=values)
    found = held(running)
    running.source.orders.approve(TABLE, found.id)
    wait_for(running, SourceState.RUNNING)
    newest = dict(bench.records())
    assert {key: value for key, value in newest.items() if b"B" not in (value or b"")} == {}


@pytest.mark.parametrize("most", [1000, 10], ids=["compared", "too large"])
def test_a_comparison_that_takes_too_much_memory_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Guarantees 8 and 12: on another history every row of a large topic is sent, and what is gone is removed."""
    monkeypatch.setattr(poll_preparation, "MOST_COMPARED", most)
    bench.sql.execute(ROWS.format(40))
    bench.once()
    before = bench.records()
    bench.sql.execute("CREATE TABLE same (LIKE terminal_acquirer INCLUDING ALL)")
    bench.sql.execute("INSERT INTO same SELECT * FROM terminal_acquirer WHERE id <> 7")
    bench.sql.execute("DROP TABLE terminal_acquirer")
    bench.sql.execute("ALTER TABLE same RENAME TO terminal_acquirer")
    bench.once()
    after = bench.records()[len(before) :]
    assert len(after) == (1 if most == 1000 else 40)
    assert [key for key, value in after if value is None] == [key for key, _ in before if key == b"7"]


def test_only_what_was_sent_counts_as_sent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee 9: a page that Kafka refuses is compared again, and goes out."""
    publish, refused = Publisher.publish, iter([True])

    def once_refused(publisher: Publisher, *given: Any) -> None:
        if next(refused, False):
            raise TopicRefused("refused")
        publish(publisher, *given)

    bench.sql.execute(ROWS.format(5))
    bench.once()
    bench.sql.execute("UPDATE terminal_acquirer SET acquirer_id = 'B' WHERE id = 3")
    session = Session.open(bench.connector(), bench.kafka, StatusBoard(bench.prefix), create_topics=True)
    try:
        [table] = session._registry
        afresh = table.reader.offset.restarted(ResendReason.CRASH)
        table.reader.acknowledge(RecordBatch([], afresh, persist=False))
        monkeypatch.setattr(Publisher, "publish", once_refused)
        session.poll_tables(threading.Event())
        assert table.schedule.failures == 1
        assert len(bench.records()) == 5
        table.schedule.due = 0.0
        session.poll_tables(threading.Event())
    finally:
        session.close()
    [(_, value)] = bench.records()[5:]
    assert b'"B"' in (value or b"")


def test_a_topic_deleted_while_a_first_load_fails_ends_no_source(bench: Bench) -> None:
    """Guarantee 12: between two looks at the topics a load that begins again finds none."""
    small = {"cleanup.policy": "compact", "max.message.bytes": "100"}
    bench.kafka.create_topic(bench.topic, partitions=1, replication=1, config=small)
    bench.add("T1")
    running = bench.start()
    wait_for(running, SourceState.FAILED)
    admin = new_admin({"bootstrap.servers": bench.kafka.bootstrap})
    admin.delete_topics([bench.topic])[bench.topic].result()
    bench.wait_for_records(1, 60)


def test_a_pause_within_a_load_leaves_no_word_that_all_is_published(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 12: nothing is announced early."""
    bench.sql.execute(ROWS.format(3000))
    running = paused_within_a_load(bench, monkeypatch)
    assert status(running).current_at is None


def test_once_with_a_table_that_somebody_locks_says_so(bench: Bench) -> None:
    """What was committed is not in Kafka; the remedy is another run."""
    bench.add("T1")
    opened = Session.open

    def lock_after(*args: Any, **changes: Any) -> Session:
        session = opened(*args, **changes)
        lock.__enter__()
        return session

    lock = locked(bench)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "open", lock_after)
        with pytest.raises(CompactoryError, match="is locked by"):
            bench.once()
    lock.__exit__(None, None, None)
    bench.once()
    assert living(bench) == {1}


def test_rows_to_send_again_wait_for_a_lock_to_end(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start(**NEVER)
    bench.wait_for_records(1)
    with locked(bench):
        running.source.orders.resend(TABLE, [b"1"])
        wait_for(running, SourceState.WAITING)
    bench.wait_for_records(2)


def test_rows_to_send_again_wait_for_a_topic_that_refuses_them(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start()
    bench.wait_for_records(1)
    with refusing(bench, bench.topic):
        running.source.orders.resend(TABLE, [b"1"])
        wait_for(running, SourceState.FAILED)
    bench.wait_for_records(2)


@pytest.mark.usefixtures("own_kafka")  # the topic of heartbeats belongs to all sources of a Kafka
def test_heartbeats_that_kafka_refuses_hold_no_table_up(bench: Bench) -> None:
    """Guarantee 12: the session goes on."""
    install(bench.sql)
    bench.add("T1")
    running = bench.start(heartbeat_interval_ms=1000)
    wait_until(lambda: running.source.status().heartbeat, what="a heartbeat")
    with refusing(bench, HEARTBEATS_TOPIC):
        wait_until(lambda: any("no heartbeat" in text for text in running.source.status().warnings), what="a warning")
        bench.add("T2")
        bench.wait_for_records(2)
        assert running.source.status().state is SourceState.RUNNING
    beat = running.source.status().heartbeat
    wait_until(lambda: running.source.status().heartbeat != beat, what="another heartbeat")
