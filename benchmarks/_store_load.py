"""Times ``GlobalStore.start()``, then reads: ``python -m benchmarks._store_load BOOTSTRAP TOPIC KIND [options]``.

``--disk FOLDER`` keeps the entries there; ``--threads N`` read for ``--seconds S``; none: no reads.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks._reading import Clock, memory, reads
from compactory import Directory, GlobalStore, Index

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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    try:
        store = made(given.bootstrap, given.topic, given.kind, given.disk)
    except (ImportError, TypeError):
        print(json.dumps({"absent": "not built yet"}))
        return
    print(json.dumps(measured(store, given.topic, given.threads, given.seconds)))
    store.close()


def made(bootstrap: str, topic: str, kind: str, disk: str | None = None) -> GlobalStore:
    shape, options = KINDS[kind]
    if disk is not None:
        from compactory import RocksDB

        options = options | {"backend": RocksDB(disk)}
    return GlobalStore(bootstrap, [Directory(topic, **shape)], **options)


def measured(store: GlobalStore, topic: str, threads: int, seconds: float) -> dict[str, float]:
    clock = Clock()
    store.start()
    figures = clock.figures() | memory()
    view = store[topic]
    figures["entries"] = len(view)
    if threads:
        figures["rate"] = reads(view.get, len(view), threads=threads, seconds=seconds)
        figures["raw_rate"] = reads(view.raw, len(view), threads=threads, seconds=seconds)
    return figures


if __name__ == "__main__":
    main()
