"""The handler of jobs of 1 ms on bare threads, without a database: ``bare.threads THREADS JOBS`` runs 100 groups.

Threads take chains of jobs from one queue, as an executor's do, and put back the rest of a chain after each job.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from queue import SimpleQueue

from benchmarks.programs.jobs_run import done, millisecond
from compactory_connectors.jobs import Job

GROUPS = 100


def work(queue: SimpleQueue[list[Job]]) -> None:
    while True:
        chain = queue.get()
        millisecond(chain.pop())
        if chain:
            queue.put(chain)


def main() -> None:
    threads, count = int(sys.argv[1]), int(sys.argv[2])
    queue: SimpleQueue[list[Job]] = SimpleQueue()
    for _ in range(threads):
        threading.Thread(target=work, args=[queue], daemon=True).start()
    began = time.perf_counter()
    for _ in range(GROUPS):
        queue.put([None] * (count // GROUPS))  # type: ignore[list-item]  # the handler does not look at it
    for _ in range(count):
        done.acquire()
    print(json.dumps({"rate": count / (time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
