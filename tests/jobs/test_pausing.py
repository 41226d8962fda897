"""Paused types and groups in running executors, and the operator log of jobs."""

from __future__ import annotations

import getpass
import threading
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from compactory.errors import ConfigError
from compactory_connectors.jobs import JobExecutor, NewJob
from compactory_connectors.jobs.claims import Claims
from compactory_connectors.jobs.operators import Act, JobFilter, change_jobs, pause, resume
from compactory_connectors.jobs.statements import open_jobs
from compactory_connectors.jobs.status import JobsWorker
from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_connectors.postgres.operator_log import operator_log
from tests.jobs.harness import Bench
from tests.source.workload import wait_until


def shows(executor: JobExecutor, **labels: str) -> bool:
    """Return True if status and metrics have exactly this pause."""
    worker = JobsWorker(executor)
    samples = next(metric.samples for metric in worker.metrics() if metric.name == "compactory_paused")
    expected = [labels] if labels else []
    return worker.status()["paused"] == expected and samples == {tuple(item.values()): 1.0 for item in expected}


def acts(bench: Bench) -> list[tuple[Any, ...]]:
    """Lines of the log, oldest first."""
    return [(line.action, line.object, line.count) for line in reversed(operator_log(bench.sql, "jobs"))]


def started(bench: Bench, type_: str) -> int:
    return len(bench.column("SELECT job FROM effects WHERE type = %s", type_))


def bench_with_handlers(bench: Bench) -> Bench:
    @bench.jobs.handler("a")
    @bench.jobs.handler("b")
    def handle(job: Any, conn: psycopg.Connection[Any]) -> None:
        conn.execute('INSERT INTO effects (job, type, "group") VALUES (%s, %s, %s)', [job.id, job.type, job.group])
        time.sleep(0.005)

    return bench


def test_two_executors_obey_within_a_second_and_others_go_on(bench: Bench) -> None:
    """A flood of a type stops while another type runs; an executor that starts later obeys too. None is lost."""
    bench_with_handlers(bench)
    executors = [bench.executor(concurrency=2) for _ in range(2)]
    with bench.sql.transaction():
        bench.jobs.enqueue_many(bench.sql, [NewJob(type="a") for _ in range(2000)])
    wait_until(lambda: started(bench, "a") > 20, what="the flood")
    begun_at = time.monotonic()
    assert pause(bench.sql, "a") == (True, None)
    wait_until(lambda: all(shows(item, part="jobs", name="a") for item in executors), 1.0, "the pause in both")
    wait_until(lambda: not bench.column("SELECT id FROM compactory.jobs WHERE state = 'running'"), 1.0, "the last end")
    assert time.monotonic() - begun_at < 1.0
    count = started(bench, "a")
    bench.wait_for(bench.enqueue("b"), "succeeded")
    executors.append(bench.executor())
    wait_until(lambda: shows(executors[-1], part="jobs", name="a"), what="the pause in a new executor")
    bench.wait_for(bench.enqueue("b"), "succeeded")
    assert started(bench, "a") == count
    assert pause(bench.sql, "a") == (False, None)
    assert resume(bench.sql, "a")
    wait_until(lambda: all(map(shows, executors)), 1.0, "the resume")
    wait_until(lambda: started(bench, "a") > count, 1.0, "a resumed job")
    bench.wait_for_all(60)
    assert started(bench, "a") == 2000
    assert not resume(bench.sql, "a")


def test_a_paused_group_keeps_its_order_and_a_paused_type_holds_its_group(bench: Bench) -> None:
    bench_with_handlers(bench)
    pause(bench.sql, group="g")
    pause(bench.sql, "b")
    bench.executor()
    with bench.sql.transaction():
        group = bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", group="g") for _ in range(30)])
        other = bench.jobs.enqueue_many(bench.sql, [NewJob(type=name, group="h") for name in ("a", "b", "a")])
    bench.wait_for(other[0], "succeeded")
    bench.wait_for(bench.enqueue("a"), "succeeded")
    assert {bench.state(job) for job in (*group, *other[1:])} == {"scheduled"}
    resume(bench.sql, group="g")
    bench.wait_for(group[-1], "succeeded")
    assert bench.column("SELECT job FROM effects WHERE \"group\" = 'g' ORDER BY n") == group
    assert bench.state(other[2]) == "scheduled"
    resume(bench.sql, "b")
    bench.wait_for(other[2], "succeeded")
    assert bench.column("SELECT job FROM effects WHERE \"group\" = 'h' ORDER BY n") == other


@pytest.mark.parametrize("paused", [{"type_": "a"}, {"group": "g"}])
def test_claimed_jobs_that_have_not_begun_go_back_and_do_not_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, paused: dict[str, str]
) -> None:
    """The executor takes jobs for quick and claims them ahead; the first one keeps its thread busy."""
    monkeypatch.setattr(Claims, "measure", lambda claims, *_: setattr(claims, "_rate", 1000.0))
    group = paused.get("group")
    begun: list[int] = []
    may_end = threading.Event()

    @bench.jobs.handler("other")
    @bench.jobs.handler("a")
    def handle(job: Any) -> None:
        if job.type == "a":
            begun.append(job.id)
            may_end.wait(30)

    bench.executor(concurrency=1)
    bench.wait_for(bench.enqueue("other"), "succeeded")
    with bench.sql.transaction():
        ids = bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", group=group) for _ in range(20)])
    running = "SELECT id FROM compactory.jobs WHERE state = 'running'"
    wait_until(lambda: begun and len(bench.column(running)) > 1, what="jobs that are claimed ahead")
    try:
        pause(bench.sql, **paused)
        if group is None:  # else the jobs of the chain go back when the first one ends
            wait_until(lambda: bench.column(running) == ids[:1], 5.0, "the return of the others")
        bench.wait_for(bench.enqueue("other"), "running")  # the executor has obeyed, and claims others
    finally:
        may_end.set()
    wait_until(lambda: not bench.column(running), 5.0, "the end of the job that had begun")
    bench.wait_for(bench.enqueue("other"), "succeeded")
    assert begun == ids[:1]
    assert {bench.state(job) for job in ids[1:]} == {"scheduled"}


@pytest.mark.parametrize("groups", ["NULL", "'g'"])
def test_a_backlog_of_paused_jobs_does_not_slow_others_down(bench: Bench, groups: str) -> None:
    """100,000 jobs of a paused type or group are before the others."""
    bench_with_handlers(bench)
    bench.executor()

    def seconds() -> float:
        bench.wait_for(bench.enqueue("a"), "succeeded")
        begun_at = time.monotonic()
        for _ in range(20):
            bench.wait_for(bench.enqueue("a"), "succeeded")
        return time.monotonic() - begun_at

    without_backlog = seconds()
    pause(bench.sql, "b") if groups == "NULL" else pause(bench.sql, group="g")
    bench.sql.execute(
        'INSERT INTO compactory.jobs_live (id, type, "group", place, payload, run_at, position)'
        f" SELECT i, 'b', {groups}, i, '{{}}', now(), i FROM (SELECT nextval('compactory.jobs_id_seq') AS i"
        " FROM generate_series(1, 100000)) AS n"
    )
    assert seconds() < 3 * without_backlog + 1.0  # beside a busy machine
    assert started(bench, "b") == 0


def test_names_that_were_not_seen_are_accepted_with_a_warning(bench: Bench) -> None:
    bench_with_handlers(bench)
    bench.jobs.declare("transport.notify")
    bench.enqueue("transport.notify", group="T1")
    assert pause(bench.sql, "transport.notfy") == (
        True,
        "no type 'transport.notfy' was seen yet: did you mean transport.notify?",
    )
    assert pause(bench.sql, group="T1").warning is None
    assert pause(bench.sql, group="T2").warning == "no group 'T2' was seen yet: is the name right?"
    for names in ({}, {"type_": "a", "group": "g"}):
        with pytest.raises(ConfigError, match="a type or a group"):
            pause(bench.sql, **names)


def test_each_act_leaves_a_line_in_its_transaction(bench: Bench) -> None:
    """Who, what and how many; an act that is rolled back or changes nothing leaves none."""
    bench.jobs.declare("a")
    first, second, third = (bench.enqueue("a", tenant="north") for _ in range(3))
    with closing(open_jobs(checked_url(bench.url).conninfo, "operator")) as connection:
        assert change_jobs(connection, Act.CANCEL, [first, second], by="alice") == 2
        assert change_jobs(connection, Act.CANCEL, [first]) == 0
        assert change_jobs(connection, Act.RETRY, where=JobFilter(state="cancelled", tenant="north")) == 2
        bench.sql.execute("UPDATE compactory.jobs_live SET state = 'failed' WHERE id = %s", [third])
        assert change_jobs(connection, Act.DISCARD) == 1
        bench.sql.execute("UPDATE compactory.jobs_live SET run_at = now() + interval '1 day'")
        assert change_jobs(connection, Act.RUN_NOW, where=JobFilter(type="a")) == 2
        pause(connection, "a")
        pause(connection, "a")
        resume(connection, "a", by="bob")
        pause(connection, group="g")
        with connection.transaction(force_rollback=True):
            change_jobs(connection, Act.CANCEL)
            pause(connection, "b")
    assert acts(bench) == [
        ("cancel", {"ids": [first, second]}, 2),
        ("retry", {"state": "cancelled", "tenant": "north"}, 2),
        ("discard", {}, 1),
        ("run-now", {"type": "a"}, 2),
        ("pause", {"type": "a"}, 1),
        ("resume", {"type": "a"}, 1),
        ("pause", {"group": "g"}, 1),
    ]
    role = f"({bench.sql.info.user}@{bench.sql.info.dbname})"
    people = [line.who for line in operator_log(bench.sql)]
    assert people[-1] == f"alice {role}"
    assert people[0] == f"{getpass.getuser()} {role}"
    assert [line.who for line in operator_log(bench.sql, limit=2)] == [people[0], f"bob {role}"]
    assert operator_log(bench.sql, "sink") == []


def test_lines_older_than_ninety_days_go_with_the_next_act(bench: Bench) -> None:
    pause(bench.sql, "a")
    pause(bench.sql, "b")
    bench.sql.execute("UPDATE compactory.operator_log SET at = at - interval '91 days' WHERE object ->> 'type' = 'a'")
    resume(bench.sql, "a")
    assert acts(bench) == [("pause", {"type": "b"}, 1), ("resume", {"type": "a"}, 1)]
