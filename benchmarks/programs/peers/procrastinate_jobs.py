"""procrastinate's worker with 30 jobs at a time: ``procrastinate_jobs URL JOBS SAMPLES``."""

from __future__ import annotations

import asyncio
import json
import sys

from procrastinate import App, PsycopgConnector

from benchmarks.programs.peers.queue_figures import Calls, figures

CONCURRENCY = 30


async def main(url: str, jobs: str, samples: str) -> None:
    app, calls = App(connector=PsycopgConnector(conninfo=url, max_size=CONCURRENCY)), Calls()

    @app.task(name="noop")
    async def noop() -> None:
        calls.add()

    async def enqueue(count: int) -> None:
        await noop.batch_defer_async(*[{}] * count)

    async def work() -> None:
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        print(json.dumps(await figures(calls, int(jobs), int(samples), enqueue, work)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
