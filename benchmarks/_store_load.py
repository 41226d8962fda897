"""Times ``GlobalStore.start()``: ``python -m benchmarks._store_load BOOTSTRAP TOPIC KIND``."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from compactory import Directory, GlobalStore, Index

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "apply": ({}, {}),
    "read": ({}, {"validate": "read"}),
    "indexed": ({"active": "isActive", "indexes": [Index("terminalId", unique=True)]}, {}),
}


def main() -> None:
    bootstrap, topic, kind = sys.argv[1:]
    shape, options = KINDS[kind]
    store = GlobalStore(bootstrap, [Directory(topic, **shape)], **options)
    began, cpu_began = time.perf_counter(), time.process_time()
    store.start()
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu_began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"entries": len(store[topic]), "seconds": seconds, "cpu": cpu, "peak_mb": peak}))
    store.close()


if __name__ == "__main__":
    main()
