"""One database with jobs: executors in this process and in processes that a signal hits, and what handlers leave."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import psycopg

from compactory_connectors.jobs import JobExecutor, Jobs
from compactory_sql import query
from tests.source.workload import wait_until
from tests.stack.mortal import Mortal

__all__ = ["Bench"]

EFFECTS = """
CREATE TABLE effects (n int8 GENERATED ALWAYS AS IDENTITY, job int8, type text, "group" text, attempt int, version int);
CREATE TABLE collisions (job int8, "group" text, holder text);
CREATE TABLE strays (job int8, "group" text, holder text);
"""


class Bench:
    """What a test of jobs needs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.jobs = Jobs()
        self.sql = psycopg.connect(url, autocommit=True)
        self.sql.execute(EFFECTS)
        self._executors: list[JobExecutor] = []
        self._mortals: list[Mortal] = []

    def enqueue(self, *arguments: Any, **options: Any) -> int:
        with self.sql.transaction():
            return self.jobs.enqueue(self.sql, *arguments, **options)

    def register(self, *types: str) -> int:
        """The id of an executor that does nothing."""
        row = self.sql.execute(query("jobs/register"), {"name": "one", "pool": "test", "types": list(types)}).fetchone()
        assert row is not None
        return int(row[0])

    def executor(self, jobs: Jobs | None = None, **options: Any) -> JobExecutor:
        executor = JobExecutor(self.url, jobs or self.jobs, **options)
        executor.start()
        self._executors.append(executor)
        return executor

    def mortal(self, *kafka: str, ahead: float = 0.0, without: str = "", port: int | None = None) -> Mortal:
        """``port`` is the keeper's way to Postgres."""
        given = (self.url, str(port or urlsplit(self.url).port), str(ahead), without)
        self._mortals.append(Mortal("tests.jobs.mortal", *given, *kafka))
        return self._mortals[-1]

    def executor_of(self, mortal: Mortal) -> int | None:
        """The id of a process that is registered."""
        found = self.column("SELECT id FROM compactory.job_executors WHERE name LIKE %s", f"%:{mortal.pid}")
        return found[-1] if found else None

    def state(self, job: int) -> str:
        row = self.sql.execute("SELECT state FROM compactory.jobs WHERE id = %s", [job]).fetchone()
        assert row is not None, job
        return row[0]

    def place(self, job: int) -> int:
        (found,) = self.column("SELECT place FROM compactory.jobs WHERE id = %s", job)
        return found

    def wait_for(self, job: int, state: str, timeout: float = 30.0) -> None:
        wait_until(lambda: self.state(job) == state, timeout, f"job {job} to be {state}")

    def wait_for_all(self, timeout: float = 30.0) -> None:
        wait_until(lambda: self.count("compactory.jobs_live") == 0, timeout, "all jobs")

    def count(self, table: str) -> int:
        row = self.sql.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert row is not None
        return row[0]

    def column(self, statement: str, *given: Any) -> list[Any]:
        return [row[0] for row in self.sql.execute(statement, given)]

    def close(self) -> None:
        for mortal in self._mortals:
            mortal.end()
        for executor in self._executors:
            assert executor.stop()
        self.sql.close()
