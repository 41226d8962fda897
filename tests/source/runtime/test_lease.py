"""One publisher at a time: standbys, zombies, and what a process that dies at any step leaves behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from compactory.errors import LeaseLost
from compactory.records import Partition
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.schema import install
from compactory_connectors.source.operations.offset_admin import OffsetAdmin
from compactory_connectors.source.operations.offset_edit import new_edit
from compactory_connectors.source.runtime import source
from compactory_connectors.source.runtime.claim import TTL
from compactory_connectors.source.runtime.lease import Lease, LeaseTaken, LeaseUnsure
from compactory_connectors.source.runtime.worker import SourceWorker
from compactory_connectors.source.status.status import LeaseStatus, SourceState
from tests.source.conftest import ARTICLE, Bench, article_environment
from tests.source.mortal import STEPS
from tests.source.workload import wait_until
from tests.stack.freezing import frozen

# an open transaction of a dead source keeps other sources from reading the offsets, until Kafka ends it
pytestmark = pytest.mark.usefixtures("own_kafka")

TAKEOVER = 15.0  # seconds; 5 are promised to a source that gets the processor when it wants it
"""Seconds within which a standby has taken over."""


class Mortal:
    """A source in a process of its own; see :mod:`tests.source.mortal`."""

    def __init__(self, bench: Bench, folder: Path, *fate: str, **settings: str) -> None:
        number = len(list(folder.iterdir()))
        self.path, self.log = folder / f"{number}.json", folder / f"{number}.log"
        config = json.loads(ARTICLE.read_text()) | {
            "name": bench.prefix, "poll.interval.ms": "50", "batch.max.rows": "5"
        }  # fmt: skip
        self.path.write_text(json.dumps({**config, **settings}))
        command = [sys.executable, "-m", "tests.source.mortal", str(self.path), bench.kafka.bootstrap, *fate]
        environment = {**os.environ, **article_environment(bench.url, bench.prefix)}
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @property
    def frozen(self) -> bool:
        assert self.child.poll() is None, self.log.read_text()
        return frozen(self.child.pid)

    def says(self, text: str, times: int = 1) -> bool:
        assert self.child.poll() is None or text in self.log.read_text(), self.log.read_text()
        return self.log.read_text().count(text) >= times

    def signal(self, sign: signal.Signals) -> None:
        self.child.send_signal(sign)

    def end(self) -> None:
        self.child.kill()
        self.child.wait()


@pytest.fixture
def mortal(bench: Bench, tmp_path: Path) -> Iterator[Callable[..., Mortal]]:
    """Starts sources that a signal hits at a step of a transaction."""
    started: list[Mortal] = []

    def start(*fate: str, **settings: str) -> Mortal:
        started.append(Mortal(bench, tmp_path, *fate, **{name.replace("__", "."): v for name, v in settings.items()}))
        return started[-1]

    yield start
    for child in started:
        child.end()


@pytest.fixture
def leases(bench: Bench) -> Bench:
    """A bench whose database has the table of leases."""
    install(bench.sql)
    return bench


@contextmanager
def adding(bench: Bench) -> Iterator[None]:
    """A writer that commits row after row meanwhile."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(bench.url, autocommit=True) as sql:
            while not stop.wait(0.005):
                sql.execute("INSERT INTO terminal_acquirer (terminal_id, acquirer_id) VALUES ('T', 'A')")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def assert_each_commit_once(bench: Bench) -> None:
    """What read_committed consumers see is what was committed to the table, each once."""
    seen = Counter(message.key() for message in read(bench.kafka, bench.topic))
    (count,) = bench.sql.execute("SELECT count(*) FROM terminal_acquirer").fetchone() or (0,)
    assert [key for key, times in seen.items() if times > 1] == []
    assert len(seen) == count


def epoch(bench: Bench) -> int:
    row = bench.sql.execute("SELECT epoch FROM compactory.leases WHERE connector = %s", [bench.prefix]).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("installed", [True, False], ids=["row", "lock"])
def test_a_second_source_stands_by_and_takes_over_when_the_first_stops(bench: Bench, installed: bool) -> None:
    """Guarantee 11: at once, for the lease is given back."""
    if installed:
        install(bench.sql)
    bench.add("T1")
    first = bench.start()
    first.wait_for(SourceState.RUNNING)
    second = bench.start()
    second.wait_for(SourceState.STANDBY)
    worker = SourceWorker(second.source, lambda: True)
    status = second.source.status()
    assert status.detail is not None
    assert f"pid {os.getpid()} on host " in status.detail
    assert status.lease is not None
    assert (status.lease.held, status.lease.kind) == (False, "lease_table" if installed else "advisory_lock")
    assert (status.lease.lacks is None) == installed
    assert worker.ready()
    figures = {metric.name: metric.samples for metric in worker.metrics()}
    assert set(figures["compactory_source_active"].values()) == {0.0}
    assert not figures["compactory_source_lag_seconds"]
    bench.wait_for_records(1)
    first.stop()
    began = time.monotonic()
    second.wait_for(SourceState.RUNNING)
    print(f"taken over in {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < TTL
    bench.add("T2")
    bench.wait_for_records(2)
    second.stop()
    assert_each_commit_once(bench)


def test_once_waits_for_a_dead_holder_and_not_for_a_living_one(leases: Bench) -> None:
    """Guarantee 11: exit code 4 at the command line; the message names who has it."""
    leases.add("T1")
    running = leases.start()
    running.wait_for(SourceState.RUNNING)
    with pytest.raises(LeaseLost, match=rf"is published by pid {os.getpid()} on host \S+, since 20"):
        leases.once()
    running.stop()
    leases.sql.execute(
        "UPDATE compactory.leases SET holder = gen_random_uuid(), renewed_at = clock_timestamp() WHERE connector = %s",
        [leases.prefix],
    )
    leases.add("T2")
    leases.once()
    assert len(leases.records()) == 2


def test_a_process_that_dies_at_any_step_loses_and_repeats_nothing(bench: Bench, mortal: Callable[..., Mortal]) -> None:
    """Guarantees 9, 11: kill -9 at each step of a transaction; one process after the other takes over."""
    with adding(bench):
        children = [mortal(step) for step in STEPS]
        for child in children:
            assert child.child.wait(60) == -signal.SIGKILL, child.log.read_text()
    bench.once()
    assert_each_commit_once(bench)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_three_sources_killed_and_frozen_at_random(
    leases: Bench, mortal: Callable[..., Mortal], seeded: random.Random
) -> None:
    """Guarantees 9, 11: any of them at any time, for shorter and longer than a lease and a transaction last."""
    crowd, ends = [mortal() for _ in range(3)], time.monotonic() + 300
    with adding(leases):
        while time.monotonic() < ends:
            victim = seeded.randrange(len(crowd))
            if seeded.random() < 0.4:
                crowd[victim].end()
                crowd[victim] = mortal()
            else:
                crowd[victim].signal(signal.SIGSTOP)
                threading.Event().wait(seeded.choice([0.1, 1.0, 3.0, 6.0, 14.0]) * seeded.random())
                crowd[victim].signal(signal.SIGCONT)
            before = len(leases.records())
            wait_until(lambda: len(leases.records()) > before, 40, "progress")  # noqa: B023
    for child in crowd:
        wait_until(lambda: child.says("lease taken") or child.says("source stands by"), 60, "its start")  # noqa: B023
        child.signal(signal.SIGTERM)
        assert child.child.wait(60) == 0, child.log.read_text()
    leases.once()
    assert_each_commit_once(leases)


def test_a_frozen_holder_is_followed_and_publishes_nothing_when_it_wakes_up(
    leases: Bench, mortal: Callable[..., Mortal]
) -> None:
    """Guarantees 9, 11: frozen within a transaction, which then blocks no reader for long; it stands by afterwards."""
    zombie = mortal("before commit", "SIGSTOP")
    wait_until(lambda: zombie.says("lease taken"), what="the first source")
    standby = leases.start()
    standby.wait_for(SourceState.STANDBY)
    with adding(leases):
        wait_until(lambda: zombie.frozen, what="the frozen source")
        began, before = time.monotonic(), len(leases.records())
        standby.wait_for(SourceState.RUNNING)
        taken = time.monotonic() - began
        wait_until(lambda: len(leases.records()) > before, what="a record of the standby")
        blocked = time.monotonic() - began
    print(f"taken over in {taken:.2f} s, readers were blocked for {blocked:.2f} s")
    assert taken < TAKEOVER
    assert blocked < 10
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: zombie.says("source stands by"), what="the zombie standing by")
    leases.add("T")
    (count,) = leases.sql.execute("SELECT count(*) FROM terminal_acquirer").fetchone() or (0,)
    leases.wait_for_records(count)
    standby.stop()
    wait_until(lambda: zombie.says("lease taken", 2), what="the zombie's turn")
    leases.add("T")
    leases.wait_for_records(count + 1)
    assert_each_commit_once(leases)
    assert epoch(leases) == 3


def test_a_holder_that_is_killed_is_followed_in_time(leases: Bench, mortal: Callable[..., Mortal]) -> None:
    """Guarantee 11: nobody gives the lease back, it runs out."""
    leases.add("T1")
    holder = mortal()
    leases.wait_for_records(1)
    standby = leases.start()
    standby.wait_for(SourceState.STANDBY)
    holder.end()
    began = time.monotonic()
    standby.wait_for(SourceState.RUNNING)
    print(f"taken over in {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < TAKEOVER
    standby.stop()


def test_a_frozen_holder_whom_nobody_followed_goes_on(leases: Bench, mortal: Callable[..., Mortal]) -> None:
    """Guarantee 11: Kafka ended its transaction meanwhile, and fences nobody but it."""
    sleeper = mortal("before commit", "SIGSTOP", "1")
    with adding(leases):
        wait_until(lambda: sleeper.frozen, what="the frozen source")
    part = Partition(leases.topic, 0)
    began = time.monotonic()
    wait_until(
        lambda: leases.kafka.stable_offsets([part]) == leases.kafka.high_watermarks([part]), what="Kafka's time-out"
    )
    print(f"Kafka ended the transaction after {time.monotonic() - began:.2f} s")
    sleeper.signal(signal.SIGCONT)
    (count,) = leases.sql.execute("SELECT count(*) FROM terminal_acquirer").fetchone() or (0,)
    leases.wait_for_records(count)
    assert_each_commit_once(leases)
    assert epoch(leases) == 1


def test_sources_without_a_lease_in_common_do_not_fence_each_other_for_ever(
    leases: Bench, postgres_server: PostgresServer, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarantee 11: the same connector name on two databases."""
    monkeypatch.setattr(source, "_TAKEOVER_PAUSE", 0.1)
    name = leases.url.rsplit("/", 1)[1] + "_other"
    leases.sql.execute(f"CREATE DATABASE {name}")
    other = Bench(postgres_server.url(name), kafka, leases.prefix)
    try:
        install(other.sql)
        both = [leases.start(), other.start()]
        with adding(leases), adding(other):
            wait_until(lambda: any(running.ended for running in both), 60, "the end of one of them")
        for running in both:
            if running.ended:
                with pytest.raises(LeaseLost, match=r"taken over 3 times.*another database"):
                    running.stop()
            else:
                running.stop()
    finally:
        other.close()
        leases.sql.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_any_number_of_forced_edits_ends_no_source(leases: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit fences the source, which goes on from the edited offset."""
    monkeypatch.setattr(source, "_TAKEOVER_PAUSE", 0.1)
    leases.add("T1")
    running = leases.start()
    sent = len(leases.wait_for_records(1))
    connector = leases.connector()
    for rows in range(2, 6):
        with OffsetAdmin.open(connector, leases.kafka) as admin:
            admin.write(partial(admin.decide_reset, ()), new_edit(f"reset before row {rows}"), force=True)
        leases.add(f"T{rows}")  # the source notices the edit when it wants to publish this
        sent = len(leases.wait_for_records(sent + rows))
    running.stop()


def test_who_held_the_lease_holds_it_after_an_outage_of_postgres(
    leases: Bench, postgres_server: PostgresServer
) -> None:
    """Guarantees 11, 12: nobody can renew and nobody take over meanwhile."""
    leases.add("T1")
    holder = leases.start()
    holder.wait_for(SourceState.RUNNING)
    standby = leases.start()
    standby.wait_for(SourceState.STANDBY)
    database = leases.url.rsplit("/", 1)[1]
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
        holder.wait_for(SourceState.WAITING)
        away = time.monotonic()
        wait_until(lambda: time.monotonic() - away > TTL + 1, what="the lease to run out")
        admin.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
    leases.sql.close()
    leases.sql = psycopg.connect(leases.url, autocommit=True)
    holder.wait_for(SourceState.RUNNING)
    standby.wait_for(SourceState.STANDBY)
    leases.add("T2")
    leases.wait_for_records(2)
    assert epoch(leases) == 1
    holder.stop()
    standby.stop()


def test_without_transactions_nothing_is_sent_while_somebody_else_may_have_the_lease(leases: Bench) -> None:
    """Guarantee 11: the lease's time counts by the local clock, for nothing fences."""
    lease = Lease(leases.connector(transactions=False), lambda _: None)
    lease.take()
    lease.confirm()
    lease.check()
    with psycopg.connect(leases.url) as blocker:
        blocker.execute("LOCK compactory.leases IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LeaseUnsure, match=r"compactory\.transactions=off"):
            wait_until(lease.check, TTL + 5, "a lease that is unsure")
    wait_until(lambda: not _refuses(lease), what="a renewal")
    lease.close()


def test_an_error_that_nobody_foresaw_does_not_end_the_renewals(leases: Bench) -> None:
    """Guarantee 11: the holder keeps its lease."""
    renewals: list[LeaseStatus] = []

    def show(status: LeaseStatus) -> None:
        renewals.append(status)
        if len(renewals) == 2:
            raise RuntimeError

    lease = Lease(leases.connector(), show)
    lease.take()
    wait_until(lambda: len(renewals) >= 4, 10, "renewals after an error")
    assert lease.is_held
    lease.close()


def _refuses(lease: Lease) -> bool:
    try:
        lease.check()
    except LeaseUnsure:
        return True
    return False


def test_a_lease_is_lost_to_who_took_it(leases: Bench) -> None:
    """The server's clock was set forward, say: the one takes it, the other must hear of it."""
    first, second = (Lease(leases.connector(), lambda _: None) for _ in range(2))
    first.take()
    with pytest.raises(LeaseTaken):
        second.take()
    leases.sql.execute("UPDATE compactory.leases SET renewed_at = renewed_at - interval '1 hour'")
    wait_until(lambda: _taken(second) or not _set_back(leases), what="the other's turn")
    wait_until(lambda: not first.is_held, what="the loss")
    with pytest.raises(LeaseLost):
        first.check()
    second.close()
    first.close()


def _set_back(leases: Bench) -> bool:
    leases.sql.execute("UPDATE compactory.leases SET renewed_at = renewed_at - interval '1 hour'")
    return True


def _taken(lease: Lease) -> bool:
    try:
        lease.take()
    except LeaseTaken:
        return False
    return True


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_dead_holders_lease_runs_out_although_the_servers_clock_was_set(leases: Bench, hours: int) -> None:
    lease = Lease(leases.connector(), lambda _: None)
    lease.take()
    lease.close()
    leases.sql.execute(
        "UPDATE compactory.leases SET holder = gen_random_uuid(), renewed_at = clock_timestamp() + %s * interval '1 h'",
        [hours],
    )
    lease = Lease(leases.connector(), lambda _: None)
    lease.take()
    lease.close()


def test_a_role_that_may_not_write_the_lease_is_told(leases: Bench, unique: Callable[[str], str]) -> None:
    role = unique("reader").replace("-", "_")
    leases.sql.execute(f"CREATE ROLE {role} LOGIN")
    leases.sql.execute(f"GRANT SELECT ON terminal_acquirer TO {role}")
    connector = leases.connector()
    place = type(connector.connection)({**connector.connection.conninfo, "user": role})
    shown = []
    lease = Lease(leases.connector(connection=place), shown.append)
    lease.take()
    assert shown[-1].kind == "advisory_lock"
    assert f"GRANT SELECT, INSERT, UPDATE ON compactory.leases TO {role};" in shown[-1].lacks
    other = Lease(leases.connector(connection=place), shown.append)
    with pytest.raises(LeaseTaken, match=r"compactory-lease pid \d+ on host"):
        other.take()
    other.close()
    leases.sql.execute(f"GRANT USAGE ON SCHEMA compactory TO {role}")
    leases.sql.execute(f"GRANT SELECT, INSERT, UPDATE ON compactory.leases TO {role}")
    leases.sql.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    lease.close()
    lease.take()
    assert shown[-1].kind == "lease_table"
    lease.close()
    leases.sql.execute(f"DROP OWNED BY {role}")
    leases.sql.execute(f"DROP ROLE {role}")
