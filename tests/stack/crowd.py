"""Threads that work until a block ends; services that write to one database, some of whose transactions roll back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import psycopg

__all__ = ["Crowd", "Undo", "working"]


@contextmanager
def working(stop: threading.Event, targets: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Run each target in a thread until the block ends, which sets ``stop``. Raises what the first one raised."""
    errors: list[BaseException] = []

    def run(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=[target]) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


class Undo(Exception):
    """Rolls back."""


class Crowd:
    """Writers in threads of their own. A server that is away is waited for. A subclass says what they write."""

    def __init__(self, url: str, seeded: random.Random, count: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.committed: set[int] = set()
        """What `write` returned in transactions that have committed for certain."""
        self._seeds = [random.Random(seeded.getrandbits(32)) for _ in range(count)]

    def write(self, connection: psycopg.Connection, random_: random.Random) -> Iterable[int]:
        """One transaction, which is open already; return ids. Raises Undo."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Leave the transaction open for so long, or until the writers stop."""
        self._stop.wait(seconds)

    def writing(self) -> AbstractContextManager[None]:
        return working(self._stop, [partial(self._run, seed) for seed in self._seeds])

    def _run(self, random_: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._url) as connection:
                    while not self._stop.is_set():
                        self._transaction(connection, random_)
            except psycopg.OperationalError:
                self._stop.wait(0.1)

    def _transaction(self, connection: psycopg.Connection, random_: random.Random) -> None:
        try:
            with connection.transaction():
                made = set(self.write(connection, random_))
        except Undo:
            return
        with self._lock:
            self.committed |= made
