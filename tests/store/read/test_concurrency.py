"""Guarantee 5: readers in any thread see the old or the new value, never neither and never half."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from compactory import Directory, GlobalStore, Index, View
from tests.store.topics import Topics

Opener = Callable[..., GlobalStore]
KEYS = 20


def value(key: str, version: int) -> str:
    """A value whose parts belong together: ``group`` and ``twice`` follow from ``version``."""
    return (
        f'{{"id":"{key}","name":"N{key}","version":{version},"twice":{2 * version},"group":"g{version % 3}",'
        f'"pad":"{"x" * (version % 300)}"}}'
    )


class Watcher:
    """Reads in a thread and notes whatever no reader may ever see."""

    def __init__(self, view: View[dict[str, Any]], seed: float) -> None:
        self.problems: list[str] = []
        self.rounds = 0
        self._view = view
        self._chance = random.Random(seed)
        self._seen = dict.fromkeys(map(str, range(KEYS)), 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._stop.is_set() and not self.problems:
            key = str(self._chance.randrange(KEYS))
            self._check(key, self._view.get(f"N{key}"))
            self._check(key, self._view.one(id=key))
            self._check_many()
            self.rounds += 1

    def _check(self, key: str, found: dict[str, Any] | None) -> None:
        if found is None:
            self.problems.append(f"{key} was missing")
        elif found["twice"] != 2 * found["version"] or found["id"] != key:
            self.problems.append(f"{key} was half: {found}")
        elif found["version"] < self._seen[key]:
            self.problems.append(f"{key} went back from {self._seen[key]} to {found['version']}")
        else:
            self._seen[key] = found["version"]

    def _check_many(self) -> None:
        if any(found["group"] != "g1" for found in self._view.find(group="g1")):
            self.problems.append("find() gave an entry that does not match")
        if sum(1 for _ in self._view.items()) != KEYS or len(self._view) != KEYS:
            self.problems.append("iteration lost an entry")


def test_readers_in_threads_against_a_writer(topics: Topics, open_store: Opener, seeded: random.Random) -> None:
    """Guarantee 5: no key is ever missing while it is overwritten or changes its index; no value is ever half."""
    name = topics.create(2)
    versions = dict.fromkeys(range(KEYS), 0)
    for number in versions:
        topics.produce(name, (str(number), value(str(number), 0)), partition=number % 2)
    store = open_store(Directory("d", topic=name, key="name", indexes=[Index("id", unique=True), Index("group")]))
    watchers = [Watcher(store["d"], seeded.random()) for _ in range(4)]
    until = time.monotonic() + 4
    while time.monotonic() < until and not any(watcher.problems for watcher in watchers):
        batch = seeded.sample(range(KEYS), 5)
        versions.update((number, versions[number] + 1) for number in batch)
        for partition in (0, 1):
            pairs = [(str(n), value(str(n), versions[n])) for n in batch if n % 2 == partition]
            topics.produce(name, *pairs, partition=partition)
    for watcher in watchers:
        watcher.stop()
    assert not [problem for watcher in watchers for problem in watcher.problems]
    assert all(watcher.rounds > 20 for watcher in watchers)
    store.barrier()
    assert {number: store["d"][f"N{number}"]["version"] for number in versions} == versions
