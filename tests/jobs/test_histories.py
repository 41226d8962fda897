"""Executors that are killed, frozen, cut off, rebalanced and started again: every job once, groups in order.

Their clocks are minutes apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import psycopg
import pytest

from compactory.kafka.client import Kafka
from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.jobs import NewJob
from compactory_connectors.schema import install
from tests.jobs.harness import Bench
from tests.jobs.history import CLOCKS, Wrong, history
from tests.jobs.parts import PARTS
from tests.source.proof import LONG
from tests.source.workload import wait_until


def test_executors_that_are_killed_and_frozen_lose_and_repeat_nothing(bench: Bench, seeded: random.Random) -> None:
    """Guarantees 14 and 15: every committed job, its effects once, one of a group at a time."""
    history(bench, seeded, 8.0, [], lambda: None)


@pytest.mark.proof
@pytest.mark.parametrize("part", PARTS)
def test_the_same_history_goes_wrong_without_a_part_that_keeps_jobs_right(
    bench: Bench, seeded: random.Random, part: str
) -> None:
    """Broken on purpose: handlers see what the part prevents."""
    with pytest.raises(Wrong, match="strays" if part == "hand-over" else "collisions"):
        history(bench, seeded, 150.0, [], lambda: None, without=part)


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
