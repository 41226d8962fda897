"""Limits: never more jobs at once than the limit and no more starts than the rate, in all executors."""

from __future__ import annotations

import threading
import time
from collections import Counter
from statistics import median
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.jobs import JobExecutor, Jobs, NewJob
from compactory_connectors.jobs.claim_statements import ClaimStatements
from compactory_connectors.jobs.limits import JobLimit, remove_limit, set_limit
from compactory_connectors.jobs.operators import pause, resume
from compactory_connectors.jobs.statements import limits_in_force
from compactory_connectors.jobs.status import JobsWorker, limit_statuses
from compactory_connectors.postgres.operator_log import operator_log
from tests.jobs.harness import Bench
from tests.source.workload import wait_until

RUNNING = {
    kind: f"(SELECT count(*) FROM compactory.jobs_live WHERE state = 'running' AND {condition})"
    for kind, condition in (
        ("type", "type = 'limited'"),
        ("tenant", "headers ->> 'tenant' = 'north'"),
        ("group", "starts_with(\"group\", 'depot')"),
        ("inner", "starts_with(\"group\", 'depot/1')"),
    )
}
COUNTED = f"""
CREATE TABLE crowd (n int8 GENERATED ALWAYS AS IDENTITY, job int8, kind text, "group" text,
                    type int, tenant int, prefix int, inner_prefix int);
CREATE FUNCTION note(job int8, kind text, "group" text) RETURNS void LANGUAGE sql AS $$
INSERT INTO crowd (job, kind, "group", type, tenant, prefix, inner_prefix)
SELECT job, kind, "group", {", ".join(RUNNING.values())} $$;
"""
BACKLOG = """
INSERT INTO compactory.jobs_live (id, type, "group", headers, place, payload, run_at, position)
SELECT i, %s, %s, %s::jsonb, i, '{}', now(), i
  FROM (SELECT nextval('compactory.jobs_id_seq') AS i FROM generate_series(1, 50000)) AS n
"""
COLUMN = {"type": "type", "tenant": "tenant", "group": "prefix"}
LIMITED = {"type": {"type_": "limited"}, "tenant": {"tenant": "north"}, "group": {"group": "depot"}}
"""The limit of each kind that covers the jobs of `enqueue`."""


def crowd_of(bench: Bench, **limit: Any) -> Jobs:
    """Handlers that record how many jobs under each limit are running while they run."""
    bench.sql.execute(COUNTED)
    jobs = Jobs()

    @jobs.handler("limited", **limit)
    @jobs.handler("other")
    @jobs.handler("free")
    def handle(job: Any) -> None:
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute("SELECT note(%s, %s, %s)", [job.id, job.type, job.group])

    bench.jobs = jobs
    return jobs


def enqueue(bench: Bench, number: int, type_: str = "limited", groups: int = 0, kind: str = "type") -> list[int]:
    """Enqueue jobs of this type or, for a limit of another kind, of two types of the tenant or in depot's groups."""
    jobs = [NewJob(type=type_, group=f"g{i % groups}" if groups else None) for i in range(number)]
    for i, job in enumerate(jobs):
        if kind != "type":
            job.type = ("limited", "other")[i % 2]
        if kind == "tenant":
            job.headers = {"tenant": "north"}
        if kind == "group":
            job.group = f"depot/{i % (groups or number)}"
    with bench.sql.transaction():
        return bench.jobs.enqueue_many(bench.sql, jobs)


def most(bench: Bench, kind: str = "type") -> int:
    return bench.column(f"SELECT max({COLUMN[kind]}) FROM crowd")[0]


def started(bench: Bench) -> int:
    return len(bench.column("SELECT job FROM crowd WHERE kind <> 'free'"))


@pytest.mark.parametrize("groups", [0, 7])
@pytest.mark.parametrize("kind", LIMITED)
def test_three_executors_never_exceed_the_limit(bench: Bench, kind: str, groups: int) -> None:
    """Each job runs once; jobs of a group in their order."""
    jobs = crowd_of(bench, limit=3 if kind == "type" else None)
    if kind != "type":
        set_limit(bench.sql, **LIMITED[kind], running=3)
    for _ in range(3):
        bench.executor(jobs, concurrency=5)
    ids = enqueue(bench, 200, groups=groups, kind=kind)
    bench.wait_for_all(120)
    assert 1 < most(bench, kind) <= 3
    assert sorted(bench.column("SELECT job FROM crowd")) == sorted(ids)
    for group in range(groups):
        names = [f"g{group}", f"depot/{group}"]
        ran = bench.column('SELECT job FROM crowd WHERE "group" = ANY (%s) ORDER BY n', names)
        assert len(ran) >= len(ids) // groups
        assert ran == sorted(ran)


def test_a_job_obeys_every_limit_that_covers_it(bench: Bench) -> None:
    """Type, tenant and two prefixes, one within the other; all jobs run."""
    jobs = crowd_of(bench, limit=4)
    set_limit(bench.sql, tenant="north", running=3)
    set_limit(bench.sql, group="depot", running=2)
    set_limit(bench.sql, group="depot/1", running=1)
    for _ in range(3):
        bench.executor(jobs, concurrency=8)
    mix = [
        NewJob(type=type_, group=group and f"{group}{i}", headers={"tenant": tenant} if tenant else None)
        for i in range(12)
        for type_ in ("limited", "other")
        for group in (None, "depot/1", "depot/2", "dep")
        for tenant in (None, "north", "northern")
    ]
    with bench.sql.transaction():
        ids = bench.jobs.enqueue_many(bench.sql, mix)
    bench.wait_for_all(60)
    assert sorted(bench.column("SELECT job FROM crowd")) == ids
    (row,) = bench.sql.execute("SELECT max(type), max(tenant), max(prefix), max(inner_prefix) FROM crowd")
    assert all(count <= limit for count, limit in zip(row, (4, 3, 2, 1), strict=True)), row
    assert row[3] == 1
    running = {(item.limit.kind, item.limit.name): item.running_now for item in limit_statuses(bench.sql)}
    assert running == {("group", "depot"): 0, ("group", "depot/1"): 0, ("tenant", "north"): 0, ("type", "limited"): 0}


def test_full_limits_are_not_polled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 tenants run a job each and have more of them: nobody tries to claim those while free jobs run."""
    calls = Counter[str]()
    for name in ("rooms", "claim_limited"):
        monkeypatch.setattr(ClaimStatements, name, counted(calls, name))
    may_end = threading.Event()
    jobs = Jobs()
    jobs.handler("held")(lambda _: may_end.wait(30))
    jobs.handler("free")(lambda _: None)
    bench.jobs = jobs
    for number in range(40):
        set_limit(bench.sql, tenant=f"t{number}", running=1)
    bench.executor(jobs, concurrency=50)
    with bench.sql.transaction():
        for number in range(120):
            bench.jobs.enqueue(bench.sql, "held", tenant=f"t{number % 40}")
    running = "SELECT id FROM compactory.jobs WHERE state = 'running'"
    try:
        wait_until(lambda: len(bench.column(running)) == 40, what="a job of each tenant")
        calls.clear()
        begun_at = time.monotonic()
        for _ in range(20):
            bench.wait_for(enqueue(bench, 1, "free")[0], "succeeded")
        assert len(bench.column(running)) == 40
        assert calls["claim_limited"] == 0
        assert calls["rooms"] <= 4 * (time.monotonic() - begun_at) + 2
    finally:
        may_end.set()
    bench.wait_for_all()


def counted(calls: Counter[str], name: str) -> Any:
    """The method, with its calls counted."""
    method = getattr(ClaimStatements, name)

    def call(*arguments: Any) -> Any:
        calls[name] += 1
        return method(*arguments)

    return call


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


@pytest.mark.parametrize("kind", ["type", "tenant"])
def test_a_rate_lets_no_more_start_in_a_window(bench: Bench, kind: str) -> None:
    jobs = crowd_of(bench)
    set_limit(bench.sql, **LIMITED[kind], rate="20 per second")
    for _ in range(2):
        bench.executor(jobs)
    begun_at = time.monotonic()
    enqueue(bench, 70, kind=kind)
    bench.wait_for_all(60)
    assert time.monotonic() - begun_at > 2.9  # three windows end before the last ten jobs start
    windows = bench.column(
        "SELECT count(*) FROM compactory.jobs AS a JOIN compactory.jobs AS b"
        " ON b.started_at BETWEEN a.started_at AND a.started_at + interval '0.9 s' GROUP BY a.id"
    )
    assert max(windows) <= 40  # of two windows
    (starts,) = bench.column("SELECT starts FROM compactory.job_rates")
    assert 1 <= starts <= 20  # of the last window


@pytest.mark.parametrize("limited", [{"type_": "slow"}, {"tenant": "north"}])
def test_jobs_of_a_killed_executor_count_until_they_are_rescued(bench: Bench, limited: dict[str, str]) -> None:
    """kill -9 hits an executor that runs limited jobs; the other one runs all jobs, and never more than the limit."""
    bench.jobs.declare("slow")
    set_limit(bench.sql, **limited, running=2)
    first, _ = bench.mortal(), bench.mortal()
    wait_until(lambda: bench.count("compactory.job_executors") == 2, what="two executors")
    with bench.sql.transaction():
        ids = [bench.jobs.enqueue(bench.sql, "slow", tenant="north") for _ in range(30)]
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


@pytest.mark.parametrize("kind", LIMITED)
def test_a_limited_backlog_does_not_slow_others_down(bench: Bench, kind: str) -> None:
    """50,000 jobs of a full type, tenant or prefix are before the others."""
    jobs = crowd_of(bench)
    set_limit(bench.sql, **LIMITED[kind], running=1, rate="1 per hour")
    group, headers = "depot/1" if kind == "group" else None, '{"tenant": "north"}' if kind == "tenant" else None
    bench.executor(jobs)
    without_backlog = median(free_jobs(bench))
    bench.sql.execute(BACKLOG, ["limited", group, headers])
    wait_until(lambda: started(bench) == 1, what="the job that may start")
    assert median(free_jobs(bench)) < 2 * without_backlog + 0.1
    assert started(bench) == 1


def free_jobs(bench: Bench) -> list[float]:
    """Seconds from the enqueueing of each of twenty free jobs to its end."""
    seconds = []
    for _ in range(20):
        begun_at = time.monotonic()
        bench.wait_for(enqueue(bench, 1, "free")[0], "succeeded")
        seconds.append(time.monotonic() - begun_at)
    return seconds


def shown(executor: JobExecutor) -> list[dict[str, Any]]:
    limits: list[dict[str, Any]] = JobsWorker(executor).status()["limits"]
    return limits


def test_operators_change_limits_while_jobs_run(bench: Bench) -> None:
    """All executors obey within a second; the table replaces what handlers declare; each act leaves a line."""
    jobs = crowd_of(bench, limit=1, rate="1000 per hour")
    executors = [bench.executor(jobs) for _ in range(2)]
    declared = [{"kind": "type", "name": "limited", "running": 1, "rate": "1000 per hour", "set_by": "handlers"}]
    wait_until(lambda: all(shown(item) == declared for item in executors), 1.0, "the handler's limit")
    assert set_limit(bench.sql, "limited", rate="3 per hour", by="alice") is None
    changed = [{"kind": "type", "name": "limited", "running": None, "rate": "3 per hour", "set_by": "operator"}]
    wait_until(lambda: all(shown(item) == changed for item in executors), 1.0, "the operator's limit")
    enqueue(bench, 60)
    wait_until(lambda: started(bench) == 3, what="three starts")
    bench.wait_for(enqueue(bench, 1, "free")[0], "succeeded")
    assert started(bench) == 3
    assert limits_in_force(bench.sql) == [
        JobLimit(kind="type", name="limited", rate_count=3, rate_seconds=3600, by_operator=True)
    ]
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
    smallest = JobLimit(kind="type", name="limited", running=3, rate_count=100, rate_seconds=60)
    wait_until(lambda: limits_in_force(bench.sql) == [smallest], what="the declarations of three executors")
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


def test_limits_of_tenants_and_prefixes_are_set_shown_and_removed(bench: Bench) -> None:
    """Each act leaves a line that names the tenant or the prefix."""
    jobs = crowd_of(bench)
    executor = bench.executor(jobs)
    assert set_limit(bench.sql, tenant="north", running=5, by="alice") is None
    set_limit(bench.sql, group="depot", rate="100 per minute")
    limits = [
        {"kind": "group", "name": "depot", "running": None, "rate": "100 per minute", "set_by": "operator"},
        {"kind": "tenant", "name": "north", "running": 5, "rate": None, "set_by": "operator"},
    ]
    wait_until(lambda: shown(executor) == limits, 1.0, "the limits")
    metric = next(item for item in JobsWorker(executor).metrics() if item.name == "compactory_jobs_limit")
    assert metric.samples == {("tenant", "north"): 5}
    assert not remove_limit(bench.sql, "north")
    assert remove_limit(bench.sql, tenant="north")
    assert remove_limit(bench.sql, group="depot")
    wait_until(lambda: shown(executor) == [], 1.0, "the end of the limits")
    lines = [(line.action, line.object) for line in reversed(operator_log(bench.sql, "jobs"))]
    assert lines == [
        ("limit", {"tenant": "north", "running": 5}),
        ("limit", {"group": "depot", "rate": "100 per minute"}),
        ("remove-limit", {"tenant": "north"}),
        ("remove-limit", {"group": "depot"}),
    ]


def test_a_limit_that_is_set_counts_jobs_that_run_already(bench: Bench) -> None:
    """Three jobs of the tenant run; with a limit of two, no further one starts until two have ended."""
    may_end = threading.Event()
    jobs = Jobs()
    jobs.handler("held")(lambda _: may_end.wait(30))
    bench.jobs = jobs
    executor = bench.executor(jobs)
    ids = [bench.enqueue("held", tenant="north") for _ in range(3)]
    wait_until(lambda: {bench.state(job) for job in ids} == {"running"}, what="three jobs")
    try:
        set_limit(bench.sql, tenant="north", running=2)
        wait_until(lambda: [item["running"] for item in shown(executor)] == [2], 1.0, "the limit")
        job = bench.enqueue("held", tenant="north")
        bench.wait_for(bench.enqueue("held"), "running")
        assert [item.running_now for item in limit_statuses(bench.sql)] == [3]
        assert bench.state(job) == "scheduled"
    finally:
        may_end.set()
    bench.wait_for(job, "succeeded")


def test_a_limit_needs_one_name_and_a_number_or_a_rate(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="give running, rate or both"):
        set_limit(bench.sql, "limited")
    for names in ({"type_": ""}, {"tenant": "\0"}, {"group": "g" * 1001}):
        with pytest.raises(ConfigError, match=r"name .* to limit, in at most 1000 characters"):
            set_limit(bench.sql, **names, running=1)
    for names in ({}, {"type_": "limited", "tenant": "north"}, {"group": "g", "tenant": "north"}):
        with pytest.raises(ConfigError, match="only one of them"):
            set_limit(bench.sql, **names, running=1)
        with pytest.raises(ConfigError, match="only one of them"):
            remove_limit(bench.sql, **names)
    assert set_limit(bench.sql, "limited", running=1) == "no type 'limited' was seen yet: is the name right?"
