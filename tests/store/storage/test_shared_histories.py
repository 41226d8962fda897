"""Processes that share a copy are killed, frozen and started anew at random moments while their topic changes.

Each cut of each process is compared with the log up to the positions that it names.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compactory import Token
from compactory.kafka.client import Kafka
from tests.stack.freezing import freeze
from tests.store.ingest.test_rebuild import recreate
from tests.store.storage.shared_child import VALUES
from tests.store.topics import Topics

SECONDS = float(os.environ.get("PROOF_SECONDS") or 60)
PROCESSES, PARTITIONS, KEYS = 3, 2, 400
WANTED = ("owner", "follower", "kill", "freeze")
"""What has to happen more than three times, which takes a busy machine longer."""


class Process:
    """One process; its cuts never go back."""

    def __init__(self, *argv: str) -> None:
        command = [sys.executable, "-m", "tests.store.storage.shared_child", *argv]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._frozen = False
        self.seen: dict[str, int] = {}

    def ask(self, tokens: list[Token]) -> None:
        """Have it tell its state once it has the records of these tokens."""
        self.resume()
        assert self._child.stdin is not None
        print(json.dumps(tokens), file=self._child.stdin, flush=True)

    def told(self, seconds: float) -> dict[str, Any] | None:
        """Return that state; None if it does not come in time."""
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], seconds)[0]:
            return None
        return dict(json.loads(self._child.stdout.readline()))

    def show(self) -> None:
        """Have it print where its threads are."""
        self._child.send_signal(signal.SIGUSR1)

    def freeze(self) -> None:
        freeze(self._child.pid)
        self._frozen = True

    def resume(self) -> None:
        if self._frozen:
            self._child.send_signal(signal.SIGCONT)
            self._frozen = False

    def end(self, *, kill: bool) -> None:
        self.resume()
        if kill:
            self._child.kill()
        self._child.communicate(timeout=60)


class History:
    """What was written to the topic, and what processes have to show of it."""

    def __init__(self, topics: Topics, folder: Path, seeded: random.Random) -> None:
        self.happened: Counter[str] = Counter()
        self._topics = topics
        self._random = seeded
        self._topic = topics.create(PARTITIONS)
        self._topic_id = self._found()
        self._argv = (topics.address, self._topic, str(folder))
        self._log: list[list[tuple[str, Any]]] = [[] for _ in range(PARTITIONS)]
        self._last: list[Token] = []
        self._processes = [Process(*self._argv) for _ in range(PROCESSES)]

    def step(self) -> None:
        steps = (self.write, self.look, self.kill, self.stop, self.freeze, self.recreate)
        [step] = self._random.choices(steps, (40, 40, 6, 3, 8, 1))
        self.happened[step.__name__] += 1
        step()

    def write(self) -> None:
        rows = self._random.choice((1, 5, 300))
        for partition in range(PARTITIONS):
            log = self._log[partition]
            records: list[tuple[str, Any]] = []
            for _ in range(rows):
                key = f"{partition}-{'x' * self._random.choice((1, 1, 1, 600))}-{self._random.randrange(KEYS)}"
                at = f"{partition}-{len(log) + len(records)}"
                value = {"n": self._random.choice(VALUES), "at": at, "pad": "." * self._random.choice((0, 900))}
                records.append((key, value if self._random.random() < 0.8 else None))
            pairs = [(key, None if value is None else json.dumps(value)) for key, value in records]
            [*_, token] = self._topics.produce(self._topic, *pairs, partition=partition)
            log.extend(records)
            others = [each for each in self._last if each.partition != partition]
            self._last = [*others, token._replace(topic_id=self._topic_id)]

    def look(self) -> None:
        self.check(self._random.choice(self._processes), self._last if self._random.random() < 0.7 else [])

    def check(self, process: Process, tokens: list[Token]) -> None:
        """Guarantees 1, 2 and 5: all before the positions, nothing after them, in entries and index alike."""
        process.ask(tokens)
        cut = process.told(10)
        if cut is None:  # one that was frozen within a system call of LMDB holds a lock of the file
            self.happened["held up"] += 1
            process.show()
            for each in self._processes:
                each.resume()
            cut = process.told(60)
        assert cut is not None
        if cut["topic_id"] != self._topic_id:
            assert not tokens  # of the former topic: a process may not know yet that it was created again
            return
        positions, wanted = cut["positions"], {}
        for partition, log in enumerate(self._log):
            entries = dict(log[: positions.get(str(partition), 0)])
            wanted |= {key: value for key, value in entries.items() if value is not None}
        assert cut["entries"] == wanted
        found = {str(n): sorted(each["at"] for each in wanted.values() if each["n"] == n) for n in VALUES}
        assert cut["found"] == found
        assert cut["sorted"]
        assert all(positions.get(partition, -1) >= offset for partition, offset in process.seen.items())
        process.seen = positions
        self.happened["owner" if cut["owner"] else "follower"] += 1

    def kill(self) -> None:
        self._replace(kill=True)

    def stop(self) -> None:
        self._replace(kill=False)

    def freeze(self) -> None:
        self._random.choice(self._processes).freeze()

    def recreate(self) -> None:
        recreate(self._topics, self._topic, partitions=PARTITIONS)
        self._topic_id = self._found()
        self._log, self._last = [[] for _ in range(PARTITIONS)], []
        for process in self._processes:
            process.seen = {}
        self.write()

    def end(self) -> None:
        for process in self._processes:
            self.check(process, self._last)

    def close(self) -> None:
        for process in self._processes:
            process.end(kill=True)

    def _found(self) -> str | None:
        return Kafka(self._topics.address).topics([self._topic])[self._topic].topic_id

    def _replace(self, *, kill: bool) -> None:
        number = self._random.randrange(PROCESSES)
        self._processes[number].end(kill=kill)
        self._processes[number] = Process(*self._argv)


@contextmanager
def history(topics: Topics, folder: Path, seeded: random.Random) -> Iterator[History]:
    made = History(topics, folder, seeded)
    try:
        yield made
        made.end()
    finally:
        made.close()


@pytest.mark.proof
def test_processes_that_are_killed_and_frozen(topics: Topics, tmp_path: Path, seeded: random.Random) -> None:
    """Guarantees 1, 2, 3 and 5, between processes."""
    with history(topics, tmp_path, seeded) as made:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or min(made.happened[name] for name in WANTED) <= 3:
            made.step()


def test_some_steps_of_such_a_history(topics: Topics, tmp_path: Path, seeded: random.Random) -> None:
    with history(topics, tmp_path, seeded) as made:
        for _ in range(40):
            made.step()
