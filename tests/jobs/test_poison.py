"""A job that kills its process: it becomes a dead letter, and the jobs that were claimed beside it do not."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from compactory_connectors.jobs import Job, NewJob, statements
from compactory_connectors.jobs.operators import jobs_where
from compactory_connectors.jobs.statements import Assigned, JobTable, Outcome, Request, open_jobs
from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_connectors.postgres.position import Position
from tests.jobs.harness import Bench
from tests.source.workload import wait_until
from tests.stack.mortal import Mortal

NEIGHBOURS = (None, "g", "g", "h", None, "h", None)


def test_an_executor_holds_one_suspect_at_a_time(bench: Bench) -> None:
    """In groups and without; other jobs run beside it."""
    lock = threading.Lock()
    busy: list[int] = []
    together: list[list[int]] = []
    beside = threading.Event()

    @bench.jobs.handler("suspect")
    def suspect(job: Job) -> None:
        with lock:
            busy.append(job.id)
            together.append(busy.copy())
        beside.wait(30)
        with lock:
            busy.remove(job.id)

    bench.jobs.handler("other")(lambda job: beside.set())
    with bench.sql.transaction():
        made = bench.jobs.enqueue_many(bench.sql, [NewJob(type="suspect", group=group) for group in NEIGHBOURS])
        bench.sql.execute("UPDATE compactory.jobs_live SET rescues = %s", [statements.SUSPECT])
    bench.executor(concurrency=10)
    wait_until(lambda: busy, what="the first suspect")
    with bench.sql.transaction():
        bench.jobs.enqueue_many(bench.sql, [NewJob(type="other", group=group) for group in (None, "i")])
    bench.wait_for_all()
    assert sorted(together) == [[job] for job in made]


def test_a_job_that_kills_its_executors_fails_and_its_neighbours_do_not(bench: Bench) -> None:
    """Guarantee 14: each executor claims all that it may, and dies where the poison is among that."""
    bench.jobs.declare("a")
    with bench.sql.transaction():
        made = bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", group=group) for group in (*NEIGHBOURS, None)])
    poison = made[4]
    request = Request(limit=100, groups=["g", "h"], depth=5)
    deaths = 0
    with closing(open_jobs(checked_url(bench.url).conninfo, "test")) as connection:
        rescuer = JobTable.register(connection, "rescuer", "test", ["a"])
        while bench.state(poison) != "failed" or bench.count("compactory.jobs_live") > 1:
            bench.sql.execute(
                "UPDATE compactory.jobs_live SET run_at = now() - interval '1 hour'"
            )  # their pauses are over
            one = JobTable.register(connection, "one", "test", ["a"])
            claimed = [
                job for chain in one.claim(request, Assigned((0,), 1), Position.at(0, 0)).chains for job in chain
            ]
            assert len([job for job in claimed if job.rescues >= statements.SUSPECT]) <= 1
            if poison not in [job.id for job in claimed]:
                one.finish([Outcome(id=job.id, token=job.token, state="succeeded") for job in claimed])
                one.unregister()
                continue
            deaths += 1
            assert rescuer.rescue(one.executor) == []  # it lives
            assert not rescuer.bury(one.executor)  # and has renewed its heartbeat
            bench.sql.execute("UPDATE compactory.job_executors SET beat_at = '-infinity' WHERE id = %s", [one.executor])
            assert rescuer.bury(one.executor)
            rescued = rescuer.rescue(one.executor)
            assert rescued is not None
            assert {job for job, _, state in rescued if state == "failed"} == ({poison} if deaths == 5 else set())
    assert deaths == 5
    assert "died" in str(jobs_where(bench.sql, [poison])[0].last_error)


@pytest.mark.proof
def test_a_job_that_kills_its_process_takes_no_other_along(bench: Bench) -> None:
    """Guarantee 14: five processes die of it; of the others some had begun each time, and the rest was claimed."""
    for name in ("a", "poison"):
        bench.jobs.declare(name)
    kinds = [("a", group) for group in NEIGHBOURS]
    kinds.insert(3, ("poison", None))
    with bench.sql.transaction():
        made = bench.jobs.enqueue_many(bench.sql, [NewJob(type=kind, group=group) for kind, group in kinds])
    poison = made[3]
    mortals = [Mortal("tests.jobs.poison", bench.url) for _ in range(2)]

    def over() -> bool:
        alive = [each for each in mortals if not each.ended()]
        mortals.extend(Mortal("tests.jobs.poison", bench.url) for _ in range(2 - len(alive)))
        return bench.column("SELECT id FROM compactory.jobs_live") == [poison] and bench.state(poison) == "failed"

    try:
        wait_until(over, 60, "the others to succeed, and the poison to fail")
        assert [each.ended() for each in mortals].count(True) == 5
    finally:
        for each in mortals:
            each.end()
    assert sorted(bench.column("SELECT DISTINCT job FROM effects")) == sorted({*made} - {poison})
    assert bench.column("SELECT DISTINCT state FROM compactory.jobs_finished") == ["succeeded"]
