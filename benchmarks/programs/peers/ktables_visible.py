"""`store_visible` with ktables: ``ktables_visible BOOTSTRAP TOPIC COUNT BARRIERS [tuned]``.

``tuned`` has the short waits that its documentation advises for quick barriers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import orjson
from ktables import KafkaTable, KafkaTableWriter

from benchmarks.programs.stamping import KEY, percentiles, stamped
from benchmarks.stage import python

_TUNED = {"fetch_max_wait_ms": 10, "poll_timeout_ms": 20}
_PATIENCE = 30.0  # seconds


class Watcher:
    """Hears of each value right after the table has it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.took: list[float] = []  # milliseconds from stamp to sight

    def __call__(self, key: str, value: Any) -> None:
        if key == KEY and "stamp" in value:
            self.took.append((time.monotonic_ns() - value["stamp"]) / 1e6)
            self.changed.set()


async def main(bootstrap: str, topic: str, count: str, barriers: str, *tuned: str) -> None:
    watcher = Watcher()
    options: dict[str, Any] = _TUNED if tuned else {}
    async with KafkaTable(
        connection=bootstrap, topic=topic, value_decoder=orjson.loads, ensure_topic=False, on_set=watcher, **options
    ) as table:
        watcher.took = []
        publisher = await asyncio.create_subprocess_exec(*python("stamping", bootstrap, topic, count))
        assert await publisher.wait() == 0
        await table.barrier()
        figures = percentiles(watcher.took, "publish")
        watcher.took = []
        await _set(bootstrap, topic, watcher, int(count))
        figures |= percentiles(watcher.took, "put")
        print(json.dumps(figures | percentiles(await _barriers(table, int(barriers)), "barrier")))


async def _set(bootstrap: str, topic: str, watcher: Watcher, count: int) -> None:
    async with KafkaTableWriter(
        connection=bootstrap, topic=topic, value_encoder=orjson.dumps, ensure_topic=False, enable_idempotence=True
    ) as writer:
        for _ in range(count):
            watcher.changed.clear()
            await writer.set(KEY, stamped(time.monotonic_ns()))
            await asyncio.wait_for(watcher.changed.wait(), _PATIENCE)


async def _barriers(table: KafkaTable[Any], count: int) -> list[float]:
    taken = []
    for _ in range(count):
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        assert await table.barrier(_PATIENCE)
        taken.append((time.perf_counter() - began) * 1000)
    return taken


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
