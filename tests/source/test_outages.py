"""Outages of Postgres and Kafka under a steady stream of writes: guarantee 12."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from compactory_connectors.source.status import SourceState
from compactory_connectors.source.watched_connection import WatchedConnection
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
    servers.mend()
    database = unique("o").replace("-", "_")
    with psycopg.connect(servers.postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")
    trial = Trial(servers, database, f"{unique('o')}-", adopted=request.param == "adopted")
    yield trial
    servers.mend()
    trial.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a silent server soon."""
    monkeypatch.setattr(WatchedConnection, "PATIENCE", 1.0)


xmin = pytest.mark.parametrize("trial", ["xmin"], indirect=True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_postgres_restarts(trial: Trial, how: signal.Signals) -> None:
    """Guarantee 12: what a crash may have taken back is sent again, no more than that."""
    trial.start()
    with trial.writer.writing():
        trial.catch_up()
        trial.fragile.restart_postgres(how)
        trial.writer.wait_for(20)
        trial.catch_up()
    trial.check(repeated=40)


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
        trial.source.control.pause()
        trial.wait_for(SourceState.PAUSED)
        assert not trial.source.status().aim_stored
        trial.fragile.kafka_proxy.thaw()
        wait_until(lambda: trial.source.status().aim_stored, 60, "the pause in Kafka")
        assert trial.state() is SourceState.PAUSED
        trial.source.control.resume()
        trial.wait_for(SourceState.RUNNING)


@xmin
@pytest.mark.parametrize("reset", [False, True])
def test_the_network_to_postgres_is_cut(trial: Trial, reset: bool) -> None:
    with trial.going():
        for _ in range(5):
            trial.fragile.postgres_proxy.cut(reset=reset)
            trial.writer.wait_for(10)
            trial.check_word()


@xmin
@pytest.mark.parametrize("how", ["all", "old", "answers"])
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
@pytest.mark.parametrize("reset", [False, True])
def test_the_network_to_kafka_is_cut(trial: Trial, reset: bool) -> None:
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
    with trial.going():
        trial.fragile.kafka.kill()
        trial.fragile.postgres.stop()
        trial.wait_for(SourceState.WAITING)
        trial.fragile.postgres.start()
        trial.writer.wait_for(50)
        trial.fragile.kafka.start()
        trial.catch_up(timeout=90)
