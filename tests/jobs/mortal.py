"""An executor in a process of its own, for signals to hit.

    python -m tests.jobs.mortal POSTGRES SECONDS [BOOTSTRAP TOPIC GROUP]

Its clock is so many SECONDS ahead of others, or behind.

Each handler holds an exclusive lock on its job and its group while it runs, in Postgres and in its own session's
transaction; one that finds it taken writes that down. ``write`` leaves its effect through the given connection.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from datetime import datetime, timedelta, tzinfo

import psycopg

from compactory_connectors.jobs import Job, JobExecutor, Jobs, Retry, keeper, table

TTL = 1.0


def patient(seconds: float = TTL) -> None:
    for module, name, value in ((table, "TTL", seconds), (table, "SPREAD", 0.2), (keeper, "_BEAT", seconds / 5)):
        setattr(module, name, value)


def shift(seconds: float) -> None:
    """Set the clock apart that modules of ours read."""
    real = time.time

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=seconds)

    time.time = lambda: real() + seconds
    for name, module in list(sys.modules.items()):
        if name.startswith("compactory") and vars(module).get("datetime") is datetime:
            module.datetime = Shifted  # type: ignore[attr-defined]


def registry() -> Jobs:
    jobs = Jobs()
    retry = Retry(first=0.02, limit=0.2)

    @jobs.handler("write", retry=retry)
    def write(job: Job, conn: psycopg.Connection) -> None:
        with Exclusive(conn, job):
            conn.execute(
                'INSERT INTO effects (job, type, "group", attempt, version) VALUES (%s, %s, %s, %s, %s)',
                [job.id, job.type, job.group, job.attempt, job.payload.get("version")],
            )
            time.sleep(random.random() * 0.01)
            if random.random() < 0.1:
                raise ValueError("at random")

    @jobs.handler("plain", retry=retry)
    def plain(job: Job) -> None:
        time.sleep(random.random() * 0.005)
        if random.random() < 0.1:
            raise ValueError("at random")

    @jobs.handler("async", retry=retry)
    async def waiting(job: Job, conn: psycopg.AsyncConnection) -> None:
        await conn.execute("INSERT INTO effects (job, type) VALUES (%s, %s)", [job.id, job.type])

    return jobs


class Exclusive:
    """Locks on job and group that others find taken."""

    def __init__(self, conn: psycopg.Connection, job: Job) -> None:
        self._conn, self._job = conn, job

    def __enter__(self) -> None:
        for key in filter(None, (f"job {self._job.id}", self._job.group and f"group {self._job.group}")):
            row = self._conn.execute("SELECT pg_try_advisory_xact_lock(1, hashtext(%s))", [key]).fetchone()
            if row != (True,):
                with psycopg.connect(self._conn.info.dsn, autocommit=True) as other:
                    other.execute("INSERT INTO collisions VALUES (%s, %s)", [self._job.id, self._job.group])

    def __exit__(self, *_: object) -> None:
        """The transaction's end gives the locks back."""


def main(url: str, seconds: str, *kafka: str) -> int:
    patient()
    shift(float(seconds))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options = dict(zip(("kafka", "topic", "group_id"), kafka, strict=False))
    executor = JobExecutor(url, registry(), concurrency=8, **options)
    executor.start()
    stop.wait()
    executor.stop(5.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
