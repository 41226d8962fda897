"""Times writes until a store shows them: ``watched BOOTSTRAP TOPIC CHANGES alone|watched``, with a watch or without.

A process of its own writes them with a `DirectoryWriter`, a thousand at a time. The watch sees every one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from threading import Thread

import orjson

from benchmarks.stage import python
from benchmarks.topics import value
from compactory import Directory, DirectoryWriter, GlobalStore

_ENTRIES = 10_000
_TOGETHER = 1000


def main() -> None:
    bootstrap, topic, changes, how = sys.argv[1:]
    directory = Directory(topic, writable=True)
    if how == "write":
        _write(bootstrap, directory, int(changes))
        return
    with GlobalStore(bootstrap, [directory]) as store:
        seen: list[None] = []
        watch = store[directory].watch() if how == "watched" else iter(())
        watching = Thread(target=lambda: seen.extend(None for _ in zip(range(int(changes)), watch, strict=False)))
        writer = subprocess.Popen(python("watched", bootstrap, topic, changes, "write"), stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        began = time.perf_counter()
        watching.start()
        writer.wait()
        store.barrier(60)
        watching.join()
        print(json.dumps({"seconds": time.perf_counter() - began, "seen": len(seen)}))


def _write(bootstrap: str, directory: Directory[dict[str, object]], changes: int) -> None:
    values = {str(number): orjson.loads(value(number)) for number in range(_ENTRIES)}
    keys = list(values)
    with DirectoryWriter(bootstrap, directory) as writer:
        print("writing", flush=True)
        for first in range(0, changes, _TOGETHER):
            at = first % _ENTRIES
            writer.put_many({key: values[key] for key in keys[at : at + _TOGETHER]})


if __name__ == "__main__":
    main()
