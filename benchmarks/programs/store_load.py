"""Times ``GlobalStore.start()``, then reads: ``store_load BOOTSTRAP TOPIC KIND [options]``.

``--disk FOLDER`` keeps the entries there, ``--saved FOLDER`` those in memory; ``--threads N`` read for ``--seconds S``;
none: no reads.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.programs.reading import Clock, memory, reads
from compactory import Backend, Directory, GlobalStore, Index, Memory, RocksDB

Options = dict[str, Any]
KINDS: dict[str, tuple[Options, Options]] = {
    "apply": ({}, {}),
    "read": ({}, {"validate": "read"}),
    "indexed": ({"active": "isActive", "indexes": [Index("terminalId", unique=True)]}, {}),
    "cached": ({"cache_decoded": True}, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--disk")
    parser.add_argument("--saved")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    shape, options = KINDS[given.kind]
    backend: Backend = Memory(given.saved) if given.disk is None else RocksDB(given.disk)
    store = GlobalStore(given.bootstrap, [Directory(given.topic, **shape)], backend=backend, **options)
    print(json.dumps(measured(store, given.topic, given.threads, given.seconds)))
    store.close()


def measured(store: GlobalStore, topic: str, threads: int, seconds: float) -> dict[str, float]:
    clock = Clock()
    store.start()
    figures = clock.figures() | memory()
    view = store[topic]
    next(iter(view), None)  # waits until what was saved is in memory
    figures["entries"] = len(view)
    if threads:
        figures["rate"] = reads(view.get, len(view), threads=threads, seconds=seconds)
        figures["raw_rate"] = reads(view.raw, len(view), threads=threads, seconds=seconds)
    return figures


if __name__ == "__main__":
    main()
