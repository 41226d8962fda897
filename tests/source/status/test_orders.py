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
from compactory_connectors.source.offsets.stored_offsets import read_offsets
from compactory_connectors.source.offsets.target_state import Target, TargetState, read_target_state, write_target_state
from compactory_connectors.source.runtime import source
from compactory_connectors.source.runtime.source import Source
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.orders import MOST_KEYS, Control, Halt
from compactory_connectors.source.status.status import SourceState, StatusBoard
from tests.source.conftest import Bench, paused_within_a_load
from tests.source.workload import wait_until


@pytest.fixture(autouse=True)
def legal_moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every move of a connector's state in these tests is one of those that are documented."""
    moves: set[tuple[SourceState, SourceState]] = set()
    recorded = StatusBoard.connector

    def record(board: StatusBoard, state: SourceState, detail: str | None = None) -> None:
        moves.add((board.picture().state, state))
        recorded(board, state, detail)

    monkeypatch.setattr(StatusBoard, "connector", record)
    yield
    assert {(old, new) for old, new in moves if old is not new and not old.may_become(new)} == set()


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
    running.source.control.pause()
    running.wait_for(SourceState.PAUSED)
    wait_until(lambda: running.source.status().target_state_stored, what="the pause in Kafka")
    bench.add("T2")
    target_state = read_target_state(bench.kafka, bench.prefix)
    assert (target_state, running.source.control.stored) == (running.source.control.target_state, True)
    assert target_state.target is Target.PAUSED
    running.stop()
    with pytest.raises(CompactoryError, match="is paused"):
        bench.once()

    again = bench.start()
    again.wait_for(SourceState.PAUSED)
    assert again.source.control.target_state == target_state, "since when is kept, too"
    assert snapshots_held(bench) == 0
    lease = again.source.status().lease
    assert lease is not None
    assert lease.held
    assert len(bench.records()) == 1
    again.source.control.resume()
    bench.wait_for_records(2)
    assert [stored.connector for stored in read_offsets(bench.kafka)].count(bench.prefix) == 1, "no offset of a table"
    again.stop()
    assert read_target_state(bench.kafka, bench.prefix) == TargetState()
    bench.once()


def test_a_pause_ends_when_somebody_else_has_stored_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source without a listener is resumed by way of the offsets topic."""
    monkeypatch.setattr(source, "PAUSED_LOOK", 0.2)
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
    assert not standby.source.control.paused
    holder.source.control.pause()
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
    running.source.control.pause()
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
    running.source.control.resume()
    assert len(bench.wait_for_records(3000)) == 3000, "nothing is sent twice"


def test_a_pause_that_is_taken_back_within_a_page_leaves_a_stored_target(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Publisher.publish

    def paused_and_resumed(publisher: Publisher, *arguments: Any) -> None:
        running.source.control.pause()
        running.source.control.resume()
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
        running.source.control.pause()
        running.wait_for(SourceState.PAUSED)
        wait_until(lambda: running.source.status().target_state_stored, what="the pause in Kafka")
        assert read_target_state(bench.kafka, bench.prefix).target is Target.PAUSED
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    running.source.control.resume()
    bench.add("T1")
    bench.wait_for_records(1)


def test_a_restart_of_the_connector_is_a_new_session_and_sends_nothing_twice(bench: Bench) -> None:
    bench.add("T1")
    running = bench.start(poll_interval_ms=3_600_000)
    bench.wait_for_records(1)
    bench.add("T2")
    running.source.control.restart()
    assert len(bench.wait_for_records(2, timeout=10)) == 2


def test_orders_are_kept_once_and_taken_once() -> None:
    control = Control()
    control.approve("t", "1")
    control.approve("t", "2")
    assert control.wants("t")
    assert (control.take_approval("t"), control.take_approval("t")) == ("2", None)
    control.approve("t", "3")
    control.approve("t", None)
    control.resend("t", [b"2", b"1"])
    control.resend("t", [b"2", b"3"])
    with pytest.raises(OrderRefused, match="try later"):
        control.resend("t", [b"k%d" % number for number in range(MOST_KEYS)])
    assert (control.take_approval("t"), control.take_resend("t"), control.wants("t")) == (
        None,
        [b"2", b"1", b"3"],
        False,
    )


def test_what_was_stored_does_not_undo_an_order_that_is_not_stored_yet() -> None:
    control = Control()
    control.pause()
    control.keep(TargetState())
    assert (control.paused, control.stored) == (True, False)
    control.keep(control.target_state)
    control.keep(TargetState())
    assert not control.paused, "somebody else stored something since"


def test_a_wait_ends_when_an_order_comes() -> None:
    control, stop = Control(), threading.Event()
    halt = Halt(stop.is_set, lambda: control.interrupts)
    threading.Timer(0.2, control.restart, ["t"]).start()
    control.wait(stop, 20)
    assert not halt.is_set(), "an order about one table does not end the session"
    control.restart()
    control.wait(stop, 20)
    assert halt.is_set()
    assert control.take_restart()
    control.wait(stop, 0.01)
    assert not halt.is_set()


def test_a_target_that_a_newer_version_wrote_is_a_pause() -> None:
    assert TargetState.loads(b'{"target":"DRAINING"}').target is Target.PAUSED
    assert TargetState.loads(TargetState(target=Target.PAUSED, since=1.5).dumps()) == TargetState(
        target=Target.PAUSED, since=1.5
    )


def test_a_source_that_is_paused_before_it_starts_never_opens_a_session(bench: Bench) -> None:
    source = Source(bench.connector(), bench.kafka)
    source.control.pause()
    stop = threading.Event()
    thread = threading.Thread(target=source.run, args=[stop])
    thread.start()
    wait_until(lambda: source.status().state is SourceState.PAUSED, what="PAUSED")
    assert not bench.kafka.topics([bench.topic])
    stop.set()
    thread.join(10)
