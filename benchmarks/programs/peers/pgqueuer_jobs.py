"""PgQueuer on asyncpg with batches of 1,000, with uvloop: ``pgqueuer_jobs URL JOBS SAMPLES``."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.programs.peers.queue_figures import Calls, figures

BATCH = 1000


async def main(url: str, jobs: str, samples: str) -> None:
    writer, worker = await asyncpg.connect(url), await asyncpg.connect(url)
    queries, queuer, calls = Queries.from_asyncpg_connection(writer), PgQueuer.from_asyncpg_connection(worker), Calls()
    await queries.install()

    @queuer.entrypoint("noop")
    async def noop(_job: Job) -> None:
        calls.add()

    async def enqueue(count: int) -> None:
        await queries.enqueue(["noop"] * count, [None] * count, [0] * count)

    async def work() -> None:
        await queuer.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=1))

    print(json.dumps(await figures(calls, int(jobs), int(samples), enqueue, work)))
    await writer.close()
    await worker.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
