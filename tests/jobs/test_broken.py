"""Each part that keeps jobs right, taken out: the same histories end wrong, so the tests beside would see it."""

from __future__ import annotations

import time

import psycopg
import pytest

from compactory_connectors.jobs import Job, Jobs, NewJob, table
from compactory_connectors.jobs.claims import Claims
from compactory_connectors.jobs.table import Outcome, outcomes_json
from compactory_sql import query
from tests.jobs.harness import Bench
from tests.source.workload import wait_until


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """A query with a part of it replaced."""
    assert old in query(name)
    changed = query(name).replace(old, new)
    monkeypatch.setattr(table, "query", lambda asked: changed if asked == name else query(asked))


@pytest.mark.parametrize("checked", [True, False])
def test_a_stalled_attempt_can_not_complete_a_job_that_was_taken_over(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Guarantee 14: only who has the token ends an attempt; without that check the stalled one does."""
    with psycopg.connect(bench.url, autocommit=True) as conn:

        @bench.jobs.handler("a")
        def handle(job: Job) -> None:
            wait_until(lambda: ended, 20, "the end of the test")

        ended: list[int] = []
        job = bench.enqueue("a")
        bench.executor()
        bench.wait_for(job, "running")
        (token,) = bench.column("SELECT token FROM compactory.jobs WHERE id = %s", job)
        stale = outcomes_json([Outcome(id=job, token=token - 1, state="succeeded")])
        text = query("jobs/finish")
        if not checked:
            text = text.replace("j.token = o.token", "true")  # type: ignore[assignment]
        done = conn.execute(text, stale).fetchall()
        state = bench.state(job)
        ended.append(1)
        assert (done, state) == (([], "running") if checked else ([(job,)], "succeeded"))
    bench.wait_for(job, "succeeded")


@pytest.mark.parametrize("checked", [True, False])
def test_two_claims_of_one_group_see_each_other(bench: Bench, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    """Guarantee 15: a job that commits late, below one that runs, waits; without the check of its group both run."""
    running: set[int] = set()
    together: list[int] = []

    def handle(job: Job) -> None:
        running.add(job.id)
        together.append(len(running))
        time.sleep(0.3)
        running.discard(job.id)

    if not checked:
        replaced(monkeypatch, "jobs/claim_groups", "r.state = 'running' AND", "false AND")
    jobs = [Jobs(), Jobs()]
    for each in jobs:
        each.handler("a")(handle)
        bench.executor(each)
    bench.jobs.declare("a")
    with psycopg.connect(bench.url) as late:
        first = bench.jobs.enqueue(late, "a", group="g", origin="1")
        second = bench.enqueue("a", group="g", origin="2")
        bench.wait_for(second, "running")
        late.commit()
        bench.wait_for(first, "succeeded")
        bench.wait_for(second, "succeeded")
    assert max(together) == (1 if checked else 2)


@pytest.mark.parametrize("handed", [True, False])
def test_what_has_not_begun_is_handed_over(
    bench: Bench, impatient: None, monkeypatch: pytest.MonkeyPatch, handed: bool
) -> None:
    """On a rebalance an executor hands back what has not begun, within two seconds; else that waits for it."""
    if not handed:
        monkeypatch.setattr(Claims, "give_back", lambda *_: None)
    monkeypatch.setattr(Claims, "room", lambda self: 1000 if self.assigned is not None and self.none else 0)
    until = time.monotonic() + 4.0
    began: dict[int, float] = {}

    def slow(job: Job) -> None:
        began[job.id] = time.monotonic()
        while time.monotonic() < until and not job.stopping and job.payload:
            time.sleep(0.01)

    jobs = [Jobs(), Jobs()]
    for each in jobs:
        each.handler("a")(slow)
    bench.jobs.declare("a")
    with bench.sql.transaction():
        long = bench.jobs.enqueue(bench.sql, "a", {"long": 1})
        bench.jobs.enqueue_many(bench.sql, [NewJob(type="a", origin=f"{n}") for n in range(40)])
    bench.executor(jobs[0], concurrency=1)
    wait_until(lambda: long in began, what="the first")
    wait_until(lambda: bench.count("compactory.jobs_live WHERE state = 'running'") > 30, what="the claims")
    joined = time.monotonic()
    bench.executor(jobs[1])
    bench.wait_for_all()
    quick = sum(at - joined < 2.0 for at in began.values() if at > joined)
    assert quick > 10 if handed else quick == 0
