"""Services that write to one database in transactions of their own, some of which roll back."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg

__all__ = ["Crowd", "Undo"]


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
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=[random.Random(seeded.getrandbits(32))]) for _ in range(count)
        ]

    def write(self, connection: psycopg.Connection, random_: random.Random) -> Iterable[int]:
        """One transaction, which is open already; return ids. Raises Undo."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Leave the transaction open for so long, or until the writers stop."""
        self._stop.wait(seconds)

    @contextmanager
    def writing(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        assert not self._errors, self._errors

    def _run(self, random_: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._url) as connection:
                    while not self._stop.is_set():
                        self._transaction(connection, random_)
            except psycopg.OperationalError:
                self._stop.wait(0.1)
            except BaseException as error:  # noqa: BLE001 - shown by writing()
                self._errors.append(error)
                return

    def _transaction(self, connection: psycopg.Connection, random_: random.Random) -> None:
        try:
            with connection.transaction():
                made = set(self.write(connection, random_))
        except Undo:
            return
        with self._lock:
            self.committed |= made
