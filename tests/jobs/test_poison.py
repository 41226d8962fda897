"""A job that kills its process becomes a dead letter."""

from __future__ import annotations

from contextlib import closing

from compactory_connectors.jobs.attempts import Attempts
from compactory_connectors.jobs.claim_statements import Request
from compactory_connectors.jobs.claims import Claims
from compactory_connectors.jobs.membership import Membership
from compactory_connectors.jobs.operators import jobs_where
from compactory_connectors.jobs.partition_assignment import Share
from compactory_connectors.jobs.rows import Assigned
from compactory_connectors.jobs.statements import JobTable, open_jobs
from compactory_connectors.jobs.status import Board
from compactory_connectors.postgres.jdbc_url import checked_url
from compactory_connectors.postgres.position import Position
from tests.jobs.harness import Bench

NEIGHBOURS = (None, "g", "g", "h", None, "h", None)


def test_the_fifth_rescue_of_a_job_fails_it(bench: Bench) -> None:
    """Guarantee 14: a job that kills its executor each time becomes a dead letter."""
    bench.jobs.declare("a")
    with bench.sql.transaction():
        poison = bench.jobs.enqueue(bench.sql, "a")
    request, conninfo = Request(limit=100), checked_url(bench.url).conninfo
    attempts = Attempts(1, bench.jobs.handlers, conninfo, lambda _: None)
    rescuer = Membership(Share(["a"]), bench.jobs, attempts, Claims(1, attempts, Board()), Board())
    with closing(open_jobs(conninfo, "test")) as connection:
        for death in range(1, 6):
            bench.sql.execute("UPDATE compactory.jobs_live SET run_at = now() - interval '1 hour'")  # its pause is over
            one = bench.register("a")
            claims = JobTable(connection, connection, one, ["a"]).claims
            chains = claims.claim(request, Assigned((0,), 1), Position.at(0, 0)).chains
            assert [job.id for chain in chains for job in chain] == [poison]
            assert rescuer._rescue(connection, one) == 0  # it lives
            assert not rescuer._unregister_expired(connection, one)  # and has renewed its heartbeat
            bench.sql.execute("UPDATE compactory.job_executors SET beat_at = '-infinity' WHERE id = %s", [one])
            assert rescuer._unregister_expired(connection, one)
            assert rescuer._rescue(connection, one) == 1
            assert bench.state(poison) == ("failed" if death == 5 else "scheduled")
    assert "died" in str(jobs_where(bench.sql, [poison])[0].last_error)
