"""Times `KafkaTable.start()`, then reads: ``ktables_load BOOTSTRAP TOPIC raw|json [reads]``.

``raw`` keeps the values' bytes, ``json`` decodes each once, when it comes. The cyclic collector is off while it
loads, as it is for the others.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import Any

import orjson
from ktables import KafkaTable

from benchmarks.programs.reading import Clock, memory, reads


async def main(bootstrap: str, topic: str, kind: str, *options: str) -> None:
    decode: Any = orjson.loads if kind == "json" else lambda value: value
    table = KafkaTable(
        connection=bootstrap, topic=topic, value_decoder=decode, ensure_topic=False, catchup_timeout=900.0
    )
    gc.disable()
    clock = Clock()
    await table.start()
    figures = clock.figures()
    assert table.status == "caught_up", table
    figures |= memory() | {"entries": len(table)}
    if options:
        figures["rate"] = reads(table.get, len(table))
    await table.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
