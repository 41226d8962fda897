"""Jobs on a Postgres of their own: so many enqueued, then run until none is left.

``jobs_run MODE JOBS [SECONDS]``. *noop*, *millisecond* (1 ms each), *groups* (the same in 100 groups) are an executor
with 30 threads, or with as many as follow a hyphen; *backlog* has a million jobs waiting for their time and a million
finished beside them, *held* a snapshot under which three times as many jobs were run before, and then a thousand a
second until it was SECONDS old; *freed* the same just after that snapshot has ended. *restart* measures five seconds,
kills and starts Postgres, and measures five seconds from the tenth after that on; JOBS must last for it. *retention*
runs as many again and again, keeps finished jobs for three seconds and says how large their table is after nine and
after 27 seconds, with autovacuum looking every second.
*queue* runs jobs that were enqueued before it starts, as many more once it runs, and then single ones, SECONDS in
number. *enqueue* enqueues by 1,000 a statement, beside COPY of the same rows into a plain table;
*latency* is from commit to handler.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg

from compactory_cli.stack.postgres import PostgresServer
from compactory_connectors.jobs import Job, JobExecutor, Jobs, NewJob
from compactory_connectors.schema import install

CONCURRENCY = 30
KEEP = 3.0  # seconds
BACKLOG = """
INSERT INTO compactory.jobs (type, place, payload, run_at) SELECT 'noop', i, '{}', now() + interval '1 day'
  FROM generate_series(1, 1000000) AS i;
INSERT INTO compactory.jobs (type, place, payload, run_at, state, finished_at)
SELECT 'noop', i, '{}', now(), 'succeeded', now() FROM generate_series(1, 1000000) AS i;
ANALYZE compactory.jobs_live; ANALYZE compactory.jobs_finished;
"""

jobs = Jobs()
done = threading.Semaphore(0)


@jobs.handler("noop")
def noop(_job: Job) -> None:
    done.release()


@jobs.handler("millisecond")
def millisecond(_job: Job) -> None:
    time.sleep(0.001)
    done.release()


def enqueue(connection: psycopg.Connection, kind: str, count: int, groups: int = 0) -> None:
    for start in range(0, count, 1000):
        batch = [
            NewJob(type=kind, payload={"number": start + n}, group=f"g{n % groups}" if groups else None)
            for n in range(1000)
        ]
        jobs.enqueue_many(connection, batch)
    connection.commit()


@contextlib.contextmanager
def executor(url: str, concurrency: int = CONCURRENCY, **options: Any) -> Iterator[JobExecutor]:
    running = JobExecutor(url, jobs, concurrency, **options)
    running.start()
    while running.board.picture()["executor"] is None:
        time.sleep(0.01)
    yield running
    assert running.stop()


def run(url: str, mode: str, count: int, seconds: float = 0.0) -> dict[str, float]:
    mode, _, concurrency = mode.partition("-")
    kind = "millisecond" if mode in {"millisecond", "groups"} else "noop"
    with psycopg.connect(url) as connection, psycopg.connect(url) as holder:
        if mode == "backlog":
            connection.execute(BACKLOG)
            connection.commit()
        with executor(url, int(concurrency or CONCURRENCY)):
            found: dict[str, float] = {}
            if mode in {"held", "freed"}:
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT FROM compactory.jobs")
                hold(connection, kind, 3 * count, seconds)
                found = {"dead": dead(url)}
                if mode == "freed":
                    holder.rollback()
            return found | {"rate": count / timed(connection, kind, count, 100 if mode == "groups" else 0)}


def dead(url: str) -> int:
    """Dead rows that no vacuum can remove, as the server's statistics have it once sessions have reported."""
    time.sleep(2.0)
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'compactory.jobs_live'::regclass"
        ).fetchone()
    assert row is not None
    found: int = row[0]
    return found


def hold(connection: psycopg.Connection, kind: str, count: int, seconds: float) -> None:
    """Run so many jobs, then a thousand a second for the rest of the time."""
    until = time.monotonic() + seconds
    timed(connection, kind, count, 0)
    while time.monotonic() < until:
        time.sleep(max(0.0, 1.0 - timed(connection, kind, 1000, 0)))


def restart(server: PostgresServer, count: int) -> dict[str, float]:
    with psycopg.connect(server.url()) as connection:
        enqueue(connection, "noop", count)
    with executor(server.url()) as running:
        before = rate(5.0)
        server.kill()
        server.start()
        began = time.perf_counter()
        while done.acquire(blocking=False):
            pass
        assert done.acquire(timeout=60)
        first = time.perf_counter() - began
        rate(10.0 - first)
        after = rate(5.0)
        assert running.alive
        assert done.acquire(timeout=1), "no job was left: give more"
    return {"rate": after, "before": before, "first_seconds": first}


def rate(seconds: float) -> float:
    """Jobs a second that handlers are called for now."""
    found, began = 0, time.perf_counter()
    while (left := began + seconds - time.perf_counter()) > 0:
        found += done.acquire(timeout=left)
    return found / seconds


def await_calls(count: int) -> None:
    for _ in range(count):
        assert done.acquire(timeout=60)


def timed(connection: psycopg.Connection, kind: str, count: int, groups: int) -> float:
    """Enqueue so many jobs; the seconds from then to the last handler's call."""
    enqueue(connection, kind, count, groups)
    began = time.perf_counter()
    await_calls(count)
    return time.perf_counter() - began


def retention(url: str, count: int) -> dict[str, float]:
    """Megabytes of the finished ones after three times, and after nine times, as long as they are kept."""
    sizes: list[float] = []
    with psycopg.connect(url) as connection, executor(url, keep=timedelta(seconds=KEEP)):
        began = time.monotonic()
        for periods in (3, 9):
            while time.monotonic() < began + periods * KEEP:
                timed(connection, "noop", count, 0)
            row = connection.execute("SELECT pg_total_relation_size('compactory.jobs_finished') / 1e6").fetchone()
            assert row is not None
            sizes.append(round(float(row[0]), 1))
            connection.commit()
    return {"third": sizes[0], "last": sizes[1]}


def enqueued(url: str, count: int) -> dict[str, float]:
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE plain (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text, payload jsonb)"
        )
        connection.commit()
        began = time.perf_counter()
        with connection.cursor().copy("COPY plain (type, payload) FROM STDIN") as copy:
            for number in range(count):
                copy.write_row(["noop", json.dumps({"number": number})])
        connection.commit()
        plain = time.perf_counter() - began
        began = time.perf_counter()
        enqueue(connection, "noop", count)
        return {"seconds": time.perf_counter() - began, "copy": plain}


def latency(url: str, count: int) -> dict[str, float]:
    taken: list[float] = []
    with psycopg.connect(url) as connection, executor(url):
        for _ in range(count):
            jobs.enqueue(connection, "noop")
            began = time.perf_counter()
            connection.commit()
            assert done.acquire(timeout=30)
            taken.append(1000 * (time.perf_counter() - began))
            time.sleep(0.01)
    cuts = statistics.quantiles(taken, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def queue(url: str, count: int, samples: int) -> dict[str, float]:
    """Measure what `benchmarks.programs.peers.queue_figures` measures of other queues."""
    milliseconds: list[float] = []
    with psycopg.connect(url) as connection:
        enqueue(connection, "noop", count)
        began = time.perf_counter()
        with executor(url):
            await_calls(count)
            found = count / (time.perf_counter() - began)
            time.sleep(1.0)
            running = count / timed(connection, "noop", count, 0)
            time.sleep(1.0)
            for _ in range(samples):
                began = time.perf_counter()
                jobs.enqueue(connection, "noop")
                connection.commit()
                await_calls(1)
                milliseconds.append(1000 * (time.perf_counter() - began))
                time.sleep(0.01)
    cuts = statistics.quantiles(milliseconds, n=100)
    return {"rate": found, "running_rate": running, "p50_ms": cuts[49], "p99_ms": cuts[98]}


def main() -> None:
    mode, count, *seconds = sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])
    server = PostgresServer(settings={"autovacuum_naptime": "1s"} if mode == "retention" else None)
    try:
        server.start()
        url = server.url()
        install(url)
        if mode == "queue":
            found = queue(url, count, int(*seconds))
        elif mode == "retention":
            found = retention(url, count)
        elif mode == "enqueue":
            found = enqueued(url, count)
        elif mode == "latency":
            found = latency(url, count)
        elif mode == "restart":
            found = restart(server, count)
        else:
            found = run(url, mode, count, *seconds)
    finally:
        server.remove()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
