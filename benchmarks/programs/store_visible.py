"""How soon a store shows what is written: ``store_visible BOOTSTRAP TOPIC COUNT BARRIERS``.

Publish → visible with another process' producer, put → visible with our own writer, then barriers on the quiet topic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from threading import Event

from benchmarks.programs.stamping import KEY, percentiles, stamped
from benchmarks.stage import python
from compactory import Directory, DirectoryWriter, GlobalStore

_PATIENCE = 30.0  # seconds


class Watcher:
    """Listens to a store and looks, each time something moved, when the key got which stamp."""

    def __init__(self, store: GlobalStore, topic: str) -> None:
        self._view = store[topic]
        self.last = 0
        self.changed = Event()
        self.took: list[float] = []  # milliseconds from stamp to sight
        store.subscribe(self.look)

    def look(self) -> None:
        found = self._view[KEY].get("stamp", 0)
        if found != self.last:
            self.took.append((time.monotonic_ns() - found) / 1e6)
            self.last = found
            self.changed.set()


def main() -> None:
    bootstrap, topic, count, barriers = sys.argv[1:]
    directory = Directory(topic, writable=True)
    with GlobalStore(bootstrap, [directory]) as store:
        watcher = Watcher(store, topic)
        subprocess.run(python("stamping", bootstrap, topic, count), check=True)
        store.barrier()
        figures = percentiles(watcher.took, "publish")
        watcher.took = []
        _put(bootstrap, directory, watcher, int(count))
        figures |= percentiles(watcher.took, "put")
        print(json.dumps(figures | percentiles(_barriers(store, int(barriers)), "barrier")))


def _put(bootstrap: str, directory: Directory[dict[str, object]], watcher: Watcher, count: int) -> None:
    with DirectoryWriter(bootstrap, directory) as writer:
        for _ in range(count):
            watcher.changed.clear()
            writer.put(KEY, stamped(time.monotonic_ns()))
            if not watcher.changed.wait(_PATIENCE):
                raise TimeoutError("what was put was not seen")


def _barriers(store: GlobalStore, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        time.sleep(0.05)
        began = time.perf_counter()
        store.barrier()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


if __name__ == "__main__":
    main()
