"""An executor in a process of its own, for signals to hit.

    python -m tests.jobs.mortal POSTGRES PORT SECONDS PART [BOOTSTRAP TOPIC GROUP]

Its keeper reaches Postgres by another PORT than its handlers do. Its clock is so many SECONDS ahead of others, or
behind. A PART of what keeps jobs right is taken out; "" is none.

Each handler holds an exclusive lock on its job and its group while it runs, in Postgres and in its own session's
transaction; one that finds it taken writes that down as a collision. One that begins a job of a partition that its
executor lost a while ago writes a stray. ``write`` and ``skip`` leave their effects through the given connection.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import urlsplit

import psycopg

from compactory_connectors.jobs import (
    Job,
    JobExecutor,
    Jobs,
    Retry,
    claims,
    handler_connection,
    membership,
    partition_assignment,
    rows,
    upkeep,
)
from tests.jobs.parts import take_out

TTL = 2.0
TURN = 2.0
AHEAD = 3.0  # seconds of work that are claimed, so that there is something to hand over
LATE = 20  # beats after the loss of a partition, in which what had not begun was handed over
BEAT = 0.05
FIRST = b"fails the first time"
_HOLDER = """
SELECT l.pid, pg_backend_pid(), a.application_name, a.state, a.query, a.xact_start::text, clock_timestamp()::text
  FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory' AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid = 1 AND l.objid = (hashtext(%s)::int8 & 4294967295)::oid AND l.objsubid = 2
   AND a.query IS DISTINCT FROM 'COMMIT'
"""


def patient(seconds: float = TTL) -> None:
    for module, name, value in (
        (membership, "TTL", seconds),
        (membership, "SPREAD", 0.2),
        (upkeep, "_BEAT_EVERY", seconds / 5),
        (claims, "_SECONDS_AHEAD", AHEAD),
    ):
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


def turn() -> int:
    """How often the partitions that executors share without Kafka have been dealt out anew."""
    return int(time.monotonic() / TURN)


def rotate() -> None:
    """Have each executor's share move to the next one at every turn."""
    shared = partition_assignment.Share.assigned

    def assigned(self: Any, pool: Sequence[int], executor: int) -> rows.Assigned | None:
        first = turn() % max(1, len(pool))
        return shared(self, [*pool[first:], *pool[:first]], executor)

    partition_assignment.Share.assigned = assigned  # type: ignore[method-assign]


class Losses:
    """Partitions that this executor has lost, and since when, in beats, which a frozen process does not have."""

    def __init__(self) -> None:
        self._beats = 0
        self._lost: dict[tuple[int, int], int] = {}  # partition and number of them → beat
        threading.Thread(target=self._beat, daemon=True).start()
        follow = upkeep.Upkeep._follow

        def followed(watched: upkeep.Upkeep) -> None:
            claims = watched.claimer.claims
            before = claims.assigned
            follow(watched)
            self._moved(before, claims.assigned)

        upkeep.Upkeep._follow = followed  # type: ignore[method-assign]

    def late(self, place: int) -> bool:
        """Whether the partition of this place was lost a while ago."""
        return any(self._beats - since > LATE and place % of == number for (number, of), since in [*self._lost.items()])

    def _moved(self, before: rows.Assigned | None, now: rows.Assigned | None) -> None:
        kept = {(number, now.of) for number in now.partitions} if now is not None else set()
        had = {(number, before.of) for number in before.partitions} if before is not None else set()
        self._lost = {each: since for each, since in self._lost.items() if each not in kept}
        self._lost |= dict.fromkeys(had - kept, self._beats)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT)
            self._beats += 1


def registry(losses: Losses) -> Jobs:
    jobs = Jobs()
    retry = Retry(first=0.02, limit=0.2)

    def work(job: Job, conn: psycopg.Connection) -> None:
        with Exclusive(conn, job, losses):
            conn.execute(
                'INSERT INTO effects (job, type, "group", attempt, version) VALUES (%s, %s, %s, %s, %s)',
                [job.id, job.type, job.group, job.attempt, job.payload.get("version")],
            )
            time.sleep(random.random() * (0.2 if random.random() < 0.1 else 0.01))
            if random.random() < 0.01:
                lose(conn)
            if random.random() < (0.4 if job.type == "skip" else 0.1):
                raise ValueError("at random")

    jobs.handler("write", retry=retry)(work)
    jobs.handler("skip", retry=retry, on_failure="skip")(work)

    @jobs.handler("plain", retry=retry)
    def plain(job: Job) -> None:
        time.sleep(random.random() * 0.005)
        if random.random() < 0.1:
            raise ValueError("at random")

    @jobs.handler("again", retry=retry)
    def again(job: Job, conn: psycopg.Connection) -> None:
        with Exclusive(conn, job, losses):
            conn.execute("INSERT INTO effects (job, type) VALUES (%s, %s)", [job.id, job.type])
            time.sleep(random.random() * 0.2 if job.attempt == 1 else random.uniform(2.0, 3.0))
            if job.attempt == 1:
                raise ValueError(FIRST.decode())

    @jobs.handler("async", retry=retry)
    async def waiting(job: Job, conn: psycopg.AsyncConnection) -> None:
        await conn.execute("INSERT INTO effects (job, type) VALUES (%s, %s)", [job.id, job.type])

    @jobs.handler("slow", retry=retry)
    def slow(job: Job, conn: psycopg.Connection) -> None:
        with Exclusive(conn, job, losses):
            conn.execute("INSERT INTO effects (job, type) VALUES (%s, %s)", [job.id, job.type])
            time.sleep(0.1)

    return jobs


def lose(conn: psycopg.Connection) -> None:
    """The session is lost here, and the server does not notice: it is at work for it."""
    conn.pgconn.send_query(b"SELECT pg_sleep(1)")
    conn.close()
    raise ConnectionError("at random")


class Exclusive:
    """Locks on job and group that others find taken."""

    def __init__(self, conn: psycopg.Connection, job: Job, losses: Losses) -> None:
        self._conn, self._job, self._losses = conn, job, losses

    def __enter__(self) -> None:
        for key in filter(None, (f"job {self._job.id}", self._job.group and f"group {self._job.group}")):
            row = self._conn.execute("SELECT pg_try_advisory_xact_lock(1, hashtext(%s))", [key]).fetchone()
            if row != (True,) and (holder := self._holder(key)):
                self._note("collisions", holder)
        row = self._conn.execute("SELECT place FROM compactory.jobs WHERE id = %s", [self._job.id]).fetchone()
        if row is not None and self._losses.late(row[0]):
            self._note("strays", "")

    def _holder(self, key: str) -> str | None:
        """Which session has the lock; None where it commits: others see that before it lets go of its locks."""
        return next((str(row) for row in self._conn.execute(_HOLDER, [key])), None)

    def _note(self, table: str, holder: str) -> None:
        with psycopg.connect(self._conn.info.dsn, autocommit=True) as other:
            row = [self._job.id, self._job.group, holder]
            other.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)", row)

    def __exit__(self, *_: object) -> None:
        """The transaction's end gives the locks back."""


def separate(port: str) -> None:
    """Connect handlers by this port."""
    conninfo = handler_connection._conninfo
    handler_connection._conninfo = lambda given, session: conninfo({**given, "port": port}, session)


def main(url: str, port: str, seconds: str, part: str, *kafka: str) -> int:
    patient()
    place = urlsplit(url)
    separate(str(place.port))
    shift(float(seconds))
    if part:
        take_out(part)
    losses = Losses()
    rotate()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    options = dict(zip(("kafka", "topic", "group_id"), kafka, strict=False))
    keepers = url.replace(f":{place.port}", f":{port}")
    executor = JobExecutor(keepers, registry(losses), concurrency=10, **options)
    executor.start()
    stop.wait()
    executor.stop(5.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
