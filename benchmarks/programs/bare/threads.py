"""The handler of jobs of 1 ms in 100 groups on bare threads: ``bare.threads THREADS JOBS each|batches|nowhere``.

Threads take chains of jobs from one queue, as an executor's do, and put back the rest after each job. With
*nowhere* there is no database. With *each* a thread commits the end of a job before the group's next one begins, by
the shortest statement and on a connection of its own. With *batches* one thread commits all that have ended meanwhile.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

import psycopg

from benchmarks.directories import postgres
from benchmarks.programs.jobs_run import done, millisecond
from compactory_connectors.jobs import Job

GROUPS = 100
TABLE = "CREATE TABLE plain (id int8 PRIMARY KEY)"
FINISH = "DELETE FROM plain WHERE id = ANY (%s::int8[])"

Chain = list[int]
Chains = SimpleQueue[Chain]


def work(queue: Chains, ended: Callable[[Chain], None]) -> None:
    job: Job = None  # type: ignore[assignment]  # the handler does not look at it
    while True:
        chain = queue.get()
        millisecond(job)
        ended(chain)


def go_on(queue: Chains, chain: Chain) -> None:
    """The first job of the chain has ended for good."""
    chain.pop()
    if chain:
        queue.put(chain)


def alone(queue: Chains, connection: psycopg.Connection) -> None:
    """A thread that commits each end."""

    def ended(chain: Chain) -> None:
        connection.execute(FINISH, [chain[-1:]])
        go_on(queue, chain)

    work(queue, ended)


def committer(queue: Chains, ends: Chains, connection: psycopg.Connection) -> None:
    """Commits the ends of other threads."""
    while True:
        chains = [ends.get()]
        with suppress(Empty):
            while True:
                chains.append(ends.get_nowait())
        connection.execute(FINISH, [[chain[-1] for chain in chains]])
        for chain in chains:
            go_on(queue, chain)


def measured(threads: int, count: int, how: str, url: str) -> float:
    queue: Chains = SimpleQueue()
    ends: Chains = SimpleQueue()
    targets: list[Callable[[], None]] = [partial(work, queue, partial(go_on, queue))] * threads
    if how == "each":
        targets = [partial(alone, queue, psycopg.connect(url, autocommit=True)) for _ in range(threads)]
    elif how == "batches":
        targets = [partial(work, queue, ends.put)] * threads
        targets.append(partial(committer, queue, ends, psycopg.connect(url, autocommit=True)))
    for target in targets:
        threading.Thread(target=target, daemon=True).start()
    began = time.perf_counter()
    for group in range(GROUPS):
        queue.put(list(range(group, count, GROUPS)))
    for _ in range(count):
        done.acquire()
    return count / (time.perf_counter() - began)


def main() -> None:
    threads, count, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if how == "nowhere":
        print(json.dumps({"rate": measured(threads, count, how, "")}))
        return
    with postgres() as url:
        with psycopg.connect(url) as connection:
            connection.execute(TABLE)
            connection.execute("INSERT INTO plain SELECT n FROM generate_series(0, %s) AS n", [count - 1])
        print(json.dumps({"rate": measured(threads, count, how, url)}))


if __name__ == "__main__":
    main()
