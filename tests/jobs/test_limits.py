"""Limits of types: never more jobs at once than the limit and no more starts than the rate, in all executors."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.jobs import JobExecutor, Jobs, NewJob
from compactory_connectors.jobs.limits import JobLimit
from compactory_connectors.jobs.operators import pause, remove_limit, resume, set_limit
from compactory_connectors.jobs.statements import limits_in_force
from compactory_connectors.jobs.status import JobsWorker, limit_statuses
from compactory_connectors.postgres.operator_log import operator_log
from tests.jobs.harness import Bench
from tests.source.workload import wait_until

COUNTED = """
CREATE TABLE crowd (n int8 GENERATED ALWAYS AS IDENTITY, type text, "group" text, job int8, others int, at timestamptz);
"""
BACKLOG = (
    "INSERT INTO compactory.jobs_live (id, type, place, payload, run_at, position)"
    " SELECT i, 'limited', i, '{}', now(), i FROM (SELECT nextval('compactory.jobs_id_seq') AS i"
    " FROM generate_series(1, 50000)) AS n"
)


def crowd_of(bench: Bench, **limit: Any) -> Jobs:
    """Handlers that record how many jobs of their type are running while they run."""
    bench.sql.execute(COUNTED)
    jobs = Jobs()

    @jobs.handler("limited", **limit)
    @jobs.handler("free")
    def handle(job: Any) -> None:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(
                'INSERT INTO crowd (type, "group", job, others, at) SELECT %(type)s, %(group)s, %(id)s, count(*),'
                " clock_timestamp() FROM compactory.jobs_live WHERE state = 'running' AND type = %(type)s",
                {"type": job.type, "group": job.group, "id": job.id},
            )

    bench.jobs = jobs
    return jobs


def enqueue(bench: Bench, number: int, type_: str = "limited", groups: int = 0) -> list[int]:
    jobs = [NewJob(type=type_, group=f"g{i % groups}" if groups else None) for i in range(number)]
    with bench.sql.transaction():
        return bench.jobs.enqueue_many(bench.sql, jobs)


def most(bench: Bench) -> int:
    return bench.column("SELECT max(others) FROM crowd WHERE type = 'limited'")[0]


def started(bench: Bench, type_: str = "limited") -> int:
    return len(bench.column("SELECT job FROM crowd WHERE type = %s", type_))


@pytest.mark.parametrize("groups", [0, 7])
def test_three_executors_never_exceed_the_limit(bench: Bench, groups: int) -> None:
    """500 jobs, each runs once; jobs of a group in their order."""
    jobs = crowd_of(bench, limit=3)
    for _ in range(3):
        bench.executor(jobs, concurrency=5)
    ids = enqueue(bench, 500, groups=groups)
    bench.wait_for_all(120)
    assert most(bench) <= 3
    assert sorted(bench.column("SELECT job FROM crowd")) == sorted(ids)
    for group in range(groups):
        ran = bench.column('SELECT job FROM crowd WHERE "group" = %s ORDER BY n', f"g{group}")
        assert ran == sorted(ran)


def test_both_executors_get_slots(bench: Bench) -> None:
    """An executor with a backlog leaves slots to another one, although a limit of one is always full."""
    jobs = crowd_of(bench, limit=1)
    first = bench.executor(jobs)
    second = bench.executor(jobs)
    wait_until(lambda: all(len(item.board.picture()["partitions"]) == 50 for item in (first, second)), what="halves")
    enqueue(bench, 200)
    wait_until(lambda: started(bench) >= 40, 60, "jobs")
    runs = [sum(item.board.picture()["runs"]["limited"].values()) for item in (first, second)]
    assert min(runs) >= 5
    assert most(bench) == 1


def test_types_mixed_in_groups_keep_their_order(bench: Bench) -> None:
    jobs = crowd_of(bench, limit=1)
    for _ in range(2):
        bench.executor(jobs)
    with bench.sql.transaction():
        types = ["limited" if i % 3 else "free" for i in range(60)]
        bench.jobs.enqueue_many(bench.sql, [NewJob(type=name, group=f"g{i % 4}") for i, name in enumerate(types)])
    bench.wait_for_all(60)
    assert most(bench) == 1
    for group in range(4):
        ran = bench.column('SELECT job FROM crowd WHERE "group" = %s ORDER BY n', f"g{group}")
        assert len(ran) == 15
        assert ran == sorted(ran)


def test_a_rate_lets_no_more_start_in_a_window(bench: Bench) -> None:
    jobs = crowd_of(bench, rate="20 per second")
    for _ in range(2):
        bench.executor(jobs)
    begun_at = time.monotonic()
    enqueue(bench, 70)
    bench.wait_for_all(60)
    assert time.monotonic() - begun_at > 2.9  # three windows end before the last ten jobs start
    windows = bench.column(
        "SELECT count(*) FROM compactory.jobs AS a JOIN compactory.jobs AS b"
        " ON b.started_at BETWEEN a.started_at AND a.started_at + interval '0.9 s' GROUP BY a.id"
    )
    assert max(windows) <= 40  # of two windows
    assert bench.column("SELECT starts FROM compactory.job_rates") == [10]


def test_jobs_of_a_killed_executor_count_until_they_are_rescued(bench: Bench) -> None:
    """kill -9 hits an executor that runs limited jobs; the other one runs all jobs, and never more than the limit."""
    bench.jobs.declare("slow")
    set_limit(bench.sql, "slow", running=2)
    first, _ = bench.mortal(), bench.mortal()
    wait_until(lambda: bench.count("compactory.job_executors") == 2, what="two executors")
    ids = enqueue(bench, 30, "slow")
    counts: list[int] = []

    def running(executor: int | None = None) -> int:
        executors = bench.column("SELECT executor FROM compactory.jobs WHERE state = 'running'")
        counts.append(len(executors))
        return len(executors) if executor is None else executors.count(executor)

    executor = bench.executor_of(first)
    wait_until(lambda: running(executor) > 0, what="a running job to kill")
    first.end()  # SIGKILL
    wait_until(lambda: running() + bench.count("compactory.jobs_live") == 0, 60, "all jobs")
    assert max(counts) == 2
    assert sorted(bench.column("SELECT job FROM effects")) == ids


def test_a_limited_backlog_does_not_slow_others_down(bench: Bench) -> None:
    """50,000 jobs of a limited type are before the others."""
    jobs = crowd_of(bench, limit=1, rate="1 per hour")
    bench.sql.execute(BACKLOG)
    bench.executor(jobs)
    bench.wait_for(enqueue(bench, 1, "free")[0], "succeeded")
    seconds = []
    for _ in range(20):
        begun_at = time.monotonic()
        bench.wait_for(enqueue(bench, 1, "free")[0], "succeeded")
        seconds.append(time.monotonic() - begun_at)
    assert median(seconds) < 0.25  # some 20 ms on an idle machine; a read of the backlog takes longer
    assert started(bench) == 1


def shown(executor: JobExecutor) -> list[dict[str, Any]]:
    limits: list[dict[str, Any]] = JobsWorker(executor).status()["limits"]
    return limits


def test_operators_change_limits_while_jobs_run(bench: Bench) -> None:
    """All executors obey within a second; the table replaces what handlers declare; each act leaves a line."""
    jobs = crowd_of(bench, limit=1, rate="1000 per hour")
    executors = [bench.executor(jobs) for _ in range(2)]
    declared = [{"type": "limited", "running": 1, "rate": "1000 per hour", "set_by": "handlers"}]
    wait_until(lambda: all(shown(item) == declared for item in executors), 1.0, "the handler's limit")
    assert set_limit(bench.sql, "limited", rate="3 per hour", by="alice") is None
    changed = [{"type": "limited", "running": None, "rate": "3 per hour", "set_by": "operator"}]
    wait_until(lambda: all(shown(item) == changed for item in executors), 1.0, "the operator's limit")
    enqueue(bench, 60)
    wait_until(lambda: started(bench) == 3, what="three starts")
    bench.wait_for(enqueue(bench, 1, "free")[0], "succeeded")
    assert started(bench) == 3
    assert limits_in_force(bench.sql) == [JobLimit(type="limited", rate_count=3, rate_seconds=3600, by_operator=True)]
    set_limit(bench.sql, "limited", running=4)
    wait_until(lambda: started(bench) > 3, 1.0, "the next start")
    pause(bench.sql, "limited")
    wait_until(lambda: not bench.column("SELECT id FROM compactory.jobs WHERE state = 'running'"), what="the pause")
    assert [item.running_now for item in limit_statuses(bench.sql)] == [0]
    resume(bench.sql, "limited")
    assert remove_limit(bench.sql, "limited")
    assert not remove_limit(bench.sql, "limited")
    wait_until(lambda: all(shown(item) == declared for item in executors), 1.0, "the handler's limit")
    bench.wait_for_all(60)
    lines = [(line.action, line.object) for line in operator_log(bench.sql, "jobs") if "limit" in line.action]
    assert lines == [
        ("remove-limit", {"type": "limited"}),
        ("limit", {"type": "limited", "running": 4}),
        ("limit", {"type": "limited", "rate": "3 per hour"}),
    ]


def test_of_handlers_that_differ_the_smaller_limits_count(bench: Bench) -> None:
    for limit, rate in ((5, "100 per minute"), (3, "2 per second"), (9, None)):
        jobs = Jobs()
        jobs.handler("limited", limit=limit, rate=rate)(lambda job: None)
        bench.executor(jobs)
    jobs = Jobs()
    jobs.handler("limited")(lambda job: None)
    last = bench.executor(jobs)
    smallest = JobLimit(type="limited", running=3, rate_count=100, rate_seconds=60)
    assert limits_in_force(bench.sql) == [smallest]
    wait_until(lambda: shown(last) == [smallest.fields()], what="the limit in an executor without one")


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ({"limit": 0}, "the limit must be a number of jobs from 1 to 1,000,000,000, not 0"),
        ({"limit": -1}, "the limit must be a number"),
        ({"limit": True}, "the limit must be a number"),
        ({"limit": 2.5}, "the limit must be a number"),
        ({"rate": "100"}, "such as '100 per minute', not '100'"),
        ({"rate": "0 per minute"}, "the rate must be"),
        ({"rate": "100 per fortnight"}, "not '100 per fortnight'"),
    ],
)
def test_bad_limits_are_refused_before_anything_is_written(bench: Bench, limit: dict[str, Any], problem: str) -> None:
    jobs = Jobs()
    jobs.handler("limited", **limit)(lambda job: None)
    with pytest.raises(ConfigError, match=problem):
        JobExecutor(bench.url, jobs)
    options = {"running" if name == "limit" else name: value for name, value in limit.items()}
    with pytest.raises(ConfigError, match=problem):
        set_limit(bench.sql, "limited", **options)
    assert bench.count("compactory.job_limits") == bench.count("compactory.operator_log") == 0


def test_a_limit_needs_a_type_and_a_number_or_a_rate(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="give running, rate or both"):
        set_limit(bench.sql, "limited")
    with pytest.raises(ConfigError, match="name the type"):
        set_limit(bench.sql, "", running=1)
    assert set_limit(bench.sql, "limited", running=1) == "no type 'limited' was seen yet: is the name right?"
