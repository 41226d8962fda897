"""So many processes with a store each: ``-m benchmarks.programs.workers KAFKA TOPIC ENTRIES NUMBER [FOLDER]``.

With FOLDER they share a copy there, else each has its own in memory. All read at the same time; then a record is
written and each says when it sees it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.programs.reading import reads
from compactory import Directory, DirectoryWriter, GlobalStore, Memory, Shared, Token

_WRITES = 200


def worker(kafka: str, topic: str, entries: int, folder: str) -> None:
    """Do what the lines of standard input ask for; answer each by one line."""
    with GlobalStore(kafka, [topic], backend=Shared(folder) if folder else Memory()) as store:
        print("ready", flush=True)
        for line in sys.stdin:
            if line == "read\n":
                answer: Any = reads(store[topic].get, entries, seconds=3.0)
            elif line == "memory\n":
                answer = _memory()
            else:
                store.wait_for(Token.parse(line), timeout=20)
                answer = time.time()
            print(json.dumps(answer), flush=True)


def _memory() -> float:
    """Return the MB that this process takes: shared pages count by the share of each."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main(kafka: str, topic: str, entries: int, number: int, folder: str) -> None:
    """Print the figures as JSON."""
    argv = [sys.executable, "-m", __spec__.name, "worker", kafka, topic, str(entries), folder]
    began = time.monotonic()
    processes = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]

    def ask(line: str) -> list[float]:
        for each in processes:
            assert each.stdin is not None
            each.stdin.write(f"{line}\n")
            each.stdin.flush()
        return [json.loads(each.stdout.readline()) for each in processes if each.stdout is not None]

    for each in processes:
        assert each.stdout is not None
        each.stdout.readline()
    figures = {"seconds": time.monotonic() - began, "rate": sum(ask("read")), "memory_mb": sum(ask("memory"))}
    directory, delays = Directory(topic, writable=True), []
    with DirectoryWriter(kafka, directory) as writer:
        for turn in range(_WRITES):
            token, sent = writer.put("0", {"turn": turn}), time.time()
            delays.append(max(0.0, max(ask(str(token))) - sent))
    figures |= {"p50": statistics.median(delays), "p99": statistics.quantiles(delays, n=100)[98]}
    for each in processes:
        each.communicate()
    print(json.dumps(figures))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "".join(sys.argv[5:]))
