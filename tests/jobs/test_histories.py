"""Executors that are killed, frozen, rebalanced and started again at any moment: every job once, groups in order.

Their clocks are minutes apart.

A service that changes a group locks its row and enqueues its next version, so that dependent transactions are known.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from compactory.kafka.client import Kafka
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.database import install
from compactory_connectors.jobs import Jobs, NewJob
from tests.jobs.harness import Bench
from tests.source.proof import LONG
from tests.source.workload import wait_until
from tests.stack.crowd import Crowd, Undo
from tests.stack.mortal import Mortal

CLOCKS = (-600.0, 0.0, 600.0)
GROUPS = [f"g{n}" for n in range(8)]
_LEFT = 'SELECT state, "group", executor, position, rescues, count(*) FROM compactory.jobs_live GROUP BY 1, 2, 3, 4, 5'
_NEXT = 'UPDATE versions SET version = version + 1 WHERE "group" = %s RETURNING version'


class Services(Crowd):
    """Change groups and enqueue; return the ids of jobs."""

    def __init__(self, url: str, seeded: random.Random) -> None:
        super().__init__(url, seeded, count=4)
        self._jobs = Jobs()

    def write(self, connection: psycopg.Connection, random_: random.Random) -> list[int]:
        kinds = random_.choices(["write", "plain", "async"], k=random_.randint(0, 4))
        batch = [NewJob(type=kind, origin=f"{random_.random()}") for kind in kinds]
        for group in sorted(random_.sample(GROUPS, random_.randint(0, 2))):
            row = connection.execute(_NEXT, [group]).fetchone()
            assert row is not None
            batch.append(NewJob(type="write", payload={"version": row[0]}, group=group, origin=f"{row[0]}"))
        made = self._jobs.enqueue_many(connection, batch)
        self.wait(random_.random() * (0.6 if random_.random() < 0.1 else 0.02))
        if random_.random() < 0.1:
            raise Undo
        return made


def disturb(bench: Bench, executors: list[Mortal], kafka: list[str], random_: random.Random, wait: Callable) -> None:
    """Kill, freeze or end one of the executors; one that has ended is started again."""
    number = random_.randrange(len(executors))
    chance = random_.random()
    if chance < 0.4:
        executors[number].end()
    elif chance < 0.7:
        executors[number].freeze()
        wait(random_.random() * 2.5)
        executors[number].resume()
    else:
        executors[number].send(signal.SIGTERM)
    if executors[number].ended() or chance >= 0.7:
        executors[number].process.wait(20)
        executors[number] = bench.mortal(*kafka, ahead=random_.choice(CLOCKS))
    wait(random_.random())


def compare(bench: Bench, committed: set[int]) -> None:
    """Every committed job has succeeded, its effect is there once, and groups were run in order."""
    assert bench.column("SELECT job FROM collisions") == []
    states = dict(bench.sql.execute("SELECT id, state FROM compactory.jobs").fetchall())
    assert committed <= set(states)
    assert {job: state for job, state in states.items() if state != "succeeded"} == {}
    written = bench.column("SELECT id FROM compactory.jobs WHERE type <> 'plain'")
    assert sorted(bench.column("SELECT job FROM effects")) == sorted(written)
    for group, last in bench.sql.execute("SELECT * FROM versions").fetchall():
        ran = bench.column('SELECT version FROM effects WHERE "group" = %s ORDER BY n', group)
        assert ran == list(range(1, last + 1)), group


def history(bench: Bench, seeded: random.Random, seconds: float, kafka: list[str], outages: Callable) -> None:
    bench.sql.execute('CREATE TABLE versions ("group" text PRIMARY KEY, version int)')
    with bench.sql.cursor() as cursor:
        cursor.executemany("INSERT INTO versions VALUES (%s, 0)", [[group] for group in GROUPS])
    services = Services(bench.url, seeded)
    executors = [bench.mortal(*kafka, ahead=clock) for clock in CLOCKS]
    over = threading.Event()
    timer = threading.Timer(seconds, over.set)
    timer.start()
    with services.writing():
        while not over.is_set():
            disturb(bench, executors, kafka, seeded, over.wait)
            outages()
    try:
        wait_until(lambda: bench.count("compactory.jobs_live") == 0, 90, "everything")
    finally:
        print(bench.sql.execute(_LEFT).fetchall(), bench.column("SELECT id FROM compactory.job_executors"))
    compare(bench, services.committed)


def test_executors_that_are_killed_and_frozen_lose_and_repeat_nothing(bench: Bench, seeded: random.Random) -> None:
    """Guarantees 14 and 15: every committed job, its effects once, one of a group at a time."""
    history(bench, seeded, 4.0, [], lambda: None)


def test_clocks_of_hosts_change_nothing(bench: Bench) -> None:
    """Jobs run when Postgres' clock says so, and no executor is taken for dead because of its own."""
    bench.jobs.declare("plain")
    for clock in CLOCKS:
        bench.mortal(ahead=clock)
    executors = "compactory.job_executors WHERE beat_at > started_at + interval '1 second'"
    wait_until(lambda: bench.count(executors) == len(CLOCKS), what="heartbeats for as long as one may be silent")
    row = bench.sql.execute("SELECT clock_timestamp() + interval '0.7 seconds'").fetchone()
    assert row is not None
    with bench.sql.transaction():
        due = [NewJob(type="plain", origin=f"{n}", run_at=row[0]) for n in range(60)]
        bench.jobs.enqueue_many(bench.sql, due)
    bench.wait_for_all()
    assert bench.column("SELECT count(DISTINCT executor) FROM compactory.jobs") == [len(CLOCKS)]
    assert bench.column("SELECT DISTINCT rescues FROM compactory.jobs WHERE started_at >= run_at") == [0]
    assert bench.column("SELECT count(*) FROM compactory.jobs WHERE started_at < run_at OR rescues > 0") == [0]


@pytest.mark.parametrize("seconds", [LONG])
def test_long_histories_with_rebalances_and_restarts_of_postgres(
    own_bench: tuple[Bench, PostgresServer], kafka: str, unique: Callable, seeded: random.Random, seconds: float
) -> None:
    """Guarantees 14 and 15, with executors of a consumer group, and Postgres killed and started again."""
    bench, postgres = own_bench
    topic, group = unique("jobs"), unique("group")
    Kafka(kafka).create_topic(topic, partitions=10)
    wait_until(lambda: Kafka(kafka).topics([topic]), what="the topic")

    def outages() -> None:
        if seeded.random() < 0.1:
            postgres.kill()
            postgres.start()
            bench.sql.close()
            bench.sql = psycopg.connect(bench.url, autocommit=True)

    history(bench, seeded, seconds, [kafka, topic, group], outages)


@pytest.fixture
def own_bench() -> Iterator[tuple[Bench, PostgresServer]]:
    """Jobs in a Postgres that may be killed."""
    postgres = PostgresServer()
    try:
        postgres.start()
        install(postgres.url())
        bench = Bench(postgres.url())
        yield bench, postgres
        bench.close()
    finally:
        postgres.remove()
