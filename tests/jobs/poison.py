"""An executor in a process of its own that one type of jobs kills: ``python -m tests.jobs.poison POSTGRES``."""

from __future__ import annotations

import os
import sys
import threading
import time

import psycopg

from compactory_connectors.jobs import Job, JobExecutor, Jobs, statements
from compactory_connectors.jobs.claims import Claims
from tests.jobs.mortal import patient

jobs = Jobs()


@jobs.handler("a")
def work(job: Job, conn: psycopg.Connection) -> None:
    """Long enough to be under way when the poison begins."""
    conn.execute("INSERT INTO effects (job) VALUES (%s)", [job.id])
    time.sleep(0.1)


@jobs.handler("poison")
def die(_job: Job) -> None:
    """As a process that the system kills."""
    os._exit(1)


def main(url: str) -> None:
    patient(0.5)
    statements.SPREAD = 0.0  # type: ignore[misc]  # all of them come back at once
    Claims.room = lambda self: 1000 if self.assigned is not None and self.none else 0  # type: ignore[method-assign]
    JobExecutor(url, jobs, concurrency=4).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
