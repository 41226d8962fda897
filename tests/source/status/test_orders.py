"""Orders to a running source: pause, resume, restart; what survives the process, and what is left alone meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from compactory.errors import CompactoryError, OrderRefused
from compactory.worker import Order, Verb
from compactory_connectors.kafka.publisher import Publisher
from compactory_connectors.schema import install
from compactory_connectors.source.offsets.stored_offsets import (
    Target,
    TargetState,
    read_offsets,
    read_target_state,
    write_target_state,
)
from compactory_connectors.source.runtime import source
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.board import StatusBoard
from compactory_connectors.source.status.orders import MOST_KEYS, Orders, StopWhen
from compactory_connectors.source.status.status import SourceState
from tests.source.conftest import Bench, paused_within_a_load
from tests.source.workload import wait_until


def may_become(old: SourceState, new: SourceState) -> bool:
    """Return True if a connector may change so. After a pause it opens a session."""
    if SourceState.HELD in {old, new} or old is SourceState.STOPPED:
        return False
    return (old, new) != (SourceState.PAUSED, SourceState.RUNNING)


@pytest.fixture(autouse=True)
def legal_moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every move of a connector's state in these tests is one of those that are documented."""
    moves: set[tuple[SourceState, SourceState]] = set()
    recorded = StatusBoard.set_state

    def record(board: StatusBoard, state: SourceState, detail: str | None = None) -> None:
        moves.add((board.picture().state, state))
        recorded(board, state, detail)

    monkeypatch.setattr(StatusBoard, "set_state", record)
    yield
    assert {(old, new) for old, new in moves if old is not new and not may_become(old, new)} == set()


def snapshots_held(bench: Bench) -> int:
    """Connections of sources that keep anything from being vacuumed, or that are within a transaction."""
    query = """SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'compactory-source'
                  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state <> 'idle')"""
    row = bench.sql.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_a_pause_survives_the_process_and_ends_with_a_resume(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start()
    bench.wait_for_records(1)
    running.source.orders.set_target(Target.PAUSED)
    running.wait_for(SourceState.PAUSED)
    wait_until(lambda: running.source.status().target_state_stored, what="the pause in Kafka")
    bench.add("T2")
    target_state = read_target_state(bench.kafka, bench.prefix)
    assert (target_state, running.source.orders.is_target_stored) == (running.source.orders.target_state, True)
    assert target_state.target is Target.PAUSED
    running.stop()
    with pytest.raises(CompactoryError, match="is paused"):
        bench.once()

    again = bench.start()
    again.wait_for(SourceState.PAUSED)
    assert again.source.orders.target_state == target_state, "since when is kept, too"
    assert snapshots_held(bench) == 0
    lease = again.source.status().lease
    assert lease is not None
    assert lease.held
    assert len(bench.records()) == 1
    again.source.orders.set_target(Target.RUNNING)
    bench.wait_for_records(2)
    assert [stored.connector for stored in read_offsets(bench.kafka)].count(bench.prefix) == 1, "no offset of a table"
    again.stop()
    assert read_target_state(bench.kafka, bench.prefix) == TargetState()
    bench.once()


def test_a_pause_ends_when_somebody_else_has_stored_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source without a listener is resumed by way of the offsets topic."""
    monkeypatch.setattr(source, "PAUSE_CHECK_INTERVAL", 0.2)
    write_target_state(bench.connector(), bench.kafka, TargetState(target=Target.PAUSED, since=1.0))
    running = bench.start()
    running.wait_for(SourceState.PAUSED)
    bench.add("T1")
    write_target_state(bench.connector(), bench.kafka, TargetState())
    bench.wait_for_records(1)


def test_a_standby_takes_no_orders_and_takes_a_pause_over(bench: Bench) -> None:
    install(bench.sql)
    holder = bench.start()
    holder.wait_for(SourceState.RUNNING)
    standby = bench.start()
    standby.wait_for(SourceState.STANDBY)
    worker = SourceWorker(standby.source, lambda: True)
    for verb in Verb:
        with pytest.raises(OrderRefused, match="standby"):
            worker.run_command(Order(verb=verb, table="public.terminal_acquirer"))
    assert not standby.source.orders.is_paused
    holder.source.orders.set_target(Target.PAUSED)
    wait_until(lambda: holder.source.status().target_state_stored, what="the pause in Kafka")
    holder.stop()
    standby.wait_for(SourceState.PAUSED)
    assert worker.ready()
    bench.add("T1")
    worker.run_command(Order(verb=Verb.RESUME))
    assert len(bench.wait_for_records(1)) == 1


def test_a_paused_holder_that_loses_its_lease_stands_by_and_comes_back_paused(bench: Bench) -> None:
    install(bench.sql)
    running = bench.start()
    running.source.orders.set_target(Target.PAUSED)
    wait_until(lambda: running.source.status().target_state_stored, what="the pause in Kafka")
    running.wait_for(SourceState.PAUSED)
    steal = "UPDATE compactory.leases SET holder = gen_random_uuid(), pid = 1, renewed_at = clock_timestamp() + %s"
    bench.sql.execute(steal, [timedelta(seconds=2)])
    running.wait_for(SourceState.STANDBY)
    running.wait_for(SourceState.PAUSED)
    assert running.source.status().target_state_stored


def test_an_approval_is_of_what_is_held_now(bench: Bench) -> None:
    running = bench.start()
    running.wait_for(SourceState.RUNNING)
    worker = SourceWorker(running.source, lambda: True)
    with pytest.raises(OrderRefused, match="nothing is held now"):
        worker.run_command(Order(verb=Verb.APPROVE, table="public.terminal_acquirer", removal="1"))
    running.stop()
    with pytest.raises(OrderRefused, match="has ended"):
        worker.run_command(Order(verb=Verb.PAUSE))


def test_a_pause_interrupts_a_long_load_and_the_rest_comes_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sql.execute(
        "INSERT INTO terminal_acquirer (terminal_id, acquirer_id) SELECT n, 'A' FROM generate_series(1, 3000) n"
    )
    running = paused_within_a_load(bench, monkeypatch)
    assert snapshots_held(bench) == 0
    running.source.orders.set_target(Target.RUNNING)
    assert len(bench.wait_for_records(3000)) == 3000, "nothing is sent twice"


def test_a_pause_that_is_taken_back_within_a_page_leaves_a_stored_target(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Publisher.publish

    def paused_and_resumed(publisher: Publisher, *arguments: Any) -> None:
        running.source.orders.set_target(Target.PAUSED)
        running.source.orders.set_target(Target.RUNNING)
        publish(publisher, *arguments)
        monkeypatch.setattr(Publisher, "publish", publish)

    running = bench.start()
    running.wait_for(SourceState.RUNNING)
    monkeypatch.setattr(Publisher, "publish", paused_and_resumed)
    bench.add("T1")
    bench.wait_for_records(1)
    wait_until(lambda: running.source.status().target_state_stored, 10, "the stored target")
    assert running.source.status().target_state.target is Target.RUNNING
    bench.add("T2")
    assert len(bench.wait_for_records(2)) == 2


def test_a_source_that_waits_for_postgres_can_be_paused(bench: Bench) -> None:
    """The order is stored without Postgres; a table that does not fit is no matter until it is resumed."""
    running = bench.start()
    running.wait_for(SourceState.RUNNING)
    name = bench.url.rsplit("/", 1)[1]
    with psycopg.connect(bench.url.rsplit("/", 1)[0] + "/postgres", autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = %s AND application_name LIKE 'compactory-source%%'",
            [name],
        )
        wait_until(
            lambda: running.source.status().state in {SourceState.WAITING, SourceState.FAILED}, what="no Postgres"
        )
        running.source.orders.set_target(Target.PAUSED)
        running.wait_for(SourceState.PAUSED)
        wait_until(lambda: running.source.status().target_state_stored, what="the pause in Kafka")
        assert read_target_state(bench.kafka, bench.prefix).target is Target.PAUSED
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    running.source.orders.set_target(Target.RUNNING)
    bench.add("T1")
    bench.wait_for_records(1)


def test_a_restart_of_the_connector_is_a_new_session_and_sends_nothing_twice(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start(poll_interval_ms=3_600_000)
    bench.wait_for_records(1)
    bench.add("T2")
    running.source.orders.restart()
    assert len(bench.wait_for_records(2, timeout=10)) == 2


def test_orders_are_kept_once_and_taken_once() -> None:
    orders = Orders()
    orders.approve("t", "1")
    orders.approve("t", "2")
    assert orders.needs_poll("t")
    assert (orders.take_approval("t"), orders.take_approval("t")) == ("2", None)
    orders.resend("t", [b"2", b"1"])
    orders.resend("t", [b"2", b"3"])
    with pytest.raises(OrderRefused, match="try later"):
        orders.resend("t", [b"k%d" % number for number in range(MOST_KEYS)])
    assert (orders.take_resend("t"), orders.needs_poll("t")) == ([b"2", b"1", b"3"], False)


def test_what_was_stored_does_not_undo_an_order_that_is_not_stored_yet() -> None:
    orders = Orders()
    orders.set_target(Target.PAUSED)
    orders.target_stored(TargetState())
    assert (orders.is_paused, orders.is_target_stored) == (True, False)
    orders.target_stored(orders.target_state)
    orders.target_stored(TargetState())
    assert not orders.is_paused, "somebody else stored something since"


def test_a_wait_ends_when_an_order_comes() -> None:
    orders, stop = Orders(), threading.Event()
    halt = StopWhen(stop.is_set, lambda: orders.ends_session)
    threading.Timer(0.2, orders.restart, ["t"]).start()
    orders.wait(stop, 20)
    assert not halt.is_set(), "an order about one table does not end the session"
    orders.restart()
    orders.wait(stop, 20)
    assert halt.is_set()
    assert orders.take_restart()
    orders.wait(stop, 0.01)
    assert not halt.is_set()


def test_a_target_that_a_newer_version_wrote_is_a_pause() -> None:
    assert TargetState.loads(b'{"target":"DRAINING"}').target is Target.PAUSED
    assert TargetState.loads(TargetState(target=Target.PAUSED, since=1.5).dumps()) == TargetState(
        target=Target.PAUSED, since=1.5
    )


def test_a_source_that_is_paused_before_it_starts_never_opens_a_session(bench: Bench) -> None:
    source = Source(bench.connector(), bench.kafka)
    source.orders.set_target(Target.PAUSED)
    stop = threading.Event()
    thread = threading.Thread(target=source.run, args=[stop])
    thread.start()
    wait_until(lambda: source.status().state is SourceState.PAUSED, what="PAUSED")
    assert not bench.kafka.topics([bench.topic])
    stop.set()
    thread.join(10)
