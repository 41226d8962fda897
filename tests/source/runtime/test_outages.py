"""Outages of Postgres and Kafka under a steady stream of writes: guarantee 12."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_connectors.source.offsets.stored_offsets import Target
from compactory_connectors.source.status.status import SourceState
from tests.conftest import needs_apache_kafka
from tests.source.outages import END_TRANSACTION, Fragile, Trial, on_request, terminating
from tests.source.workload import wait_until


@pytest.fixture(scope="module")
def servers() -> Iterator[Fragile]:
    needs_apache_kafka()
    servers = Fragile()
    try:
        servers.start()
        yield servers
    finally:
        servers.remove()


@pytest.fixture(params=["xmin", "adopted"])
def trial(request: pytest.FixtureRequest, servers: Fragile, unique: Callable[[str], str]) -> Iterator[Trial]:
    servers.resend_rows()
    database = unique("o").replace("-", "_")
    with psycopg.connect(servers.postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    trial = Trial(servers, database, f"{unique('o')}-", adopted=request.param == "adopted")
    yield trial
    servers.resend_rows()
    trial.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a silent server soon."""
    monkeypatch.setattr(WatchedConnection, "PATIENCE", 1.0)


xmin = pytest.mark.parametrize("trial", ["xmin"], indirect=True)
adopted_too = pytest.mark.parametrize(
    "trial", ["xmin", pytest.param("adopted", marks=pytest.mark.proof)], indirect=True
)
cut = pytest.mark.parametrize("reset", [True, pytest.param(False, marks=pytest.mark.proof)], ids=["reset", "end"])


@adopted_too
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGINT, marks=pytest.mark.proof), signal.SIGQUIT], ids=["fast", "immediate"]
)
def test_postgres_restarts(trial: Trial, how: signal.Signals) -> None:
    """Guarantee 12: what a crash may have taken back is sent again, no more than that."""
    trial.start()
    with trial.writer.writing():
        trial.catch_up()
        trial.fragile.restart_postgres(how)
        trial.writer.wait_for(20)
        trial.catch_up()
    trial.check(repeated=40)


@adopted_too
def test_connections_are_ended_all_the_time(trial: Trial) -> None:
    """Guarantee 12: by an administrator, in the middle of a query, a commit, a sleep."""
    with trial.going():
        with terminating(trial.url):
            trial.writer.wait_for(150)
        trial.catch_up()


@xmin
@pytest.mark.proof
def test_a_pause_while_kafka_is_away_counts_and_is_stored_afterwards(trial: Trial) -> None:
    with trial.going():
        trial.fragile.kafka_proxy.freeze()
        trial.wait_for(SourceState.WAITING)
        trial.source.orders.set_target(Target.PAUSED)
        trial.wait_for(SourceState.PAUSED)
        assert not trial.source.status().target_state_stored
        trial.fragile.kafka_proxy.thaw()
        wait_until(lambda: trial.source.status().target_state_stored, 60, "the pause in Kafka")
        assert trial.state() is SourceState.PAUSED
        trial.source.orders.set_target(Target.RUNNING)
        trial.wait_for(SourceState.RUNNING)


@xmin
@cut
def test_the_network_to_postgres_is_cut(trial: Trial, reset: bool) -> None:
    """Guarantee 12: in the middle of a query or between two."""
    with trial.going():
        for _ in range(5):
            trial.fragile.postgres_proxy.cut(reset=reset)
            trial.writer.wait_for(10)
            trial.check_word()


@xmin
@pytest.mark.parametrize("how", ["old", *(pytest.param(how, marks=pytest.mark.proof) for how in ("all", "answers"))])
def test_postgres_falls_silent(trial: Trial, impatient: None, how: str) -> None:
    """Guarantee 12: its host acknowledges everything, so that TCP finds nothing wrong."""
    with trial.going():
        proxy = trial.fragile.postgres_proxy
        proxy.swallow_answers() if how == "answers" else proxy.freeze(new=how == "all")
        if how == "old":
            trial.catch_up(timeout=20)
        else:
            trial.wait_for(SourceState.WAITING, timeout=20)
            assert "Postgres" in (trial.source.status().detail or "")
            trial.check_word()
        proxy.thaw()
        trial.catch_up()


@xmin
@cut
def test_the_network_to_kafka_is_cut(trial: Trial, reset: bool) -> None:
    """Guarantees 9 and 12: while a commit is on its way, or its acknowledgement."""
    with trial.going():
        for _ in range(5):
            trial.fragile.kafka_proxy.watch = on_request(
                END_TRANSACTION, lambda: trial.fragile.kafka_proxy.cut(reset=reset)
            )
            trial.writer.wait_for(20)
            trial.check_word()


@xmin
@pytest.mark.proof
@pytest.mark.parametrize("how", ["all", "old", "answers"])
def test_kafka_falls_silent_while_a_commit_is_on_its_way(trial: Trial, how: str) -> None:
    """Guarantees 9 and 12: the commit is done, and nobody told us."""
    proxy = trial.fragile.kafka_proxy
    with trial.going():
        action = proxy.swallow_answers if how == "answers" else lambda: proxy.freeze(new=how == "all")
        proxy.watch = on_request(END_TRANSACTION, action)
        if how == "old":
            trial.catch_up(timeout=60)
        else:
            trial.wait_for(SourceState.WAITING, timeout=60)
            assert "Kafka" in (trial.source.status().detail or "")
            trial.check_word()
        proxy.thaw()
        trial.catch_up()


@xmin
@pytest.mark.proof
@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_kafka_is_away_for_longer_than_the_producers_time_out(trial: Trial, how: str) -> None:
    """Guarantee 12: frozen with its connections, or gone."""
    kafka = trial.fragile.kafka
    with trial.going():
        kafka.freeze() if how == "frozen" else kafka.kill()
        trial.wait_for(SourceState.WAITING)
        began = time.time()
        wait_until(lambda: time.time() > began + 15, what="fifteen seconds more")
        assert trial.state() is SourceState.WAITING
        kafka.thaw() if how == "frozen" else kafka.start()
        trial.catch_up(timeout=90)


@xmin
@pytest.mark.proof
def test_both_are_away(trial: Trial) -> None:
    """Guarantee 12: and come back one after the other."""
    with trial.going():
        trial.fragile.kafka.kill()
        trial.fragile.postgres.stop()
        trial.wait_for(SourceState.WAITING)
        trial.fragile.postgres.start()
        trial.writer.wait_for(50)
        trial.fragile.kafka.start()
        trial.catch_up(timeout=90)


@xmin
@pytest.mark.proof
def test_memory_stays_bounded_while_kafka_is_away_and_rows_change(trial: Trial) -> None:
    """Guarantee 12: nothing is queued; 30 s of outage under 5,000 changed rows of 1 kB a second cost no memory."""
    with psycopg.connect(trial.url, autocommit=True) as sql:
        sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id)"
                    " SELECT n::text, repeat('x', 1000) FROM generate_series(1, 20000) n")  # fmt: skip
        with trial.process() as child:
            wait_until(lambda: len(trial.bench.records()) >= 20_000 and child.state() == "RUNNING", 60, "the load")
            before = child.memory()
            trial.fragile.kafka.kill()
            wait_until(lambda: child.state() == "WAITING", 60, "WAITING")
            until, peak = time.time() + 30, 0
            while time.time() < until:
                sql.execute("UPDATE terminal_acquirer SET acquirer_id = repeat('y', 1000) || clock_timestamp()"
                            " WHERE id % 4 = floor(random() * 4)")  # fmt: skip
                peak = max(peak, child.memory())
            assert child.lag() > 25
            trial.fragile.kafka.start()
            wait_until(lambda: child.state() == "RUNNING" and child.lag() < 5, 120, "the source to catch up")
            peak = max(peak, child.memory())
            assert peak < before + (60 << 20), f"{before >> 20} MB before, {peak >> 20} MB at most"
            rows = dict(sql.execute("SELECT id, acquirer_id FROM terminal_acquirer").fetchall())
    assert {int(key or 0): json.loads(value or b"{}")["acquirerId"] for key, value in trial.bench.records()} == rows
