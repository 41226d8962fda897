"""Waiting for writers that send NOTIFY only while somebody sleeps (ADR 0008): the sleeper holds an advisory lock.

A writer's transaction shares that lock until it has ended, or notifies where it can't. So the sleeper that has the lock
missed nobody but those who committed before: it looks once more after taking it.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

__all__ = ["Wakeup"]


class Wakeup:
    """One channel and its lock (class and key), on a connection in autocommit that a thread owns.

    :meth:`poke` may be called by any thread. Raises psycopg.Error.
    """

    def __init__(self, connection: psycopg.Connection[Any], channel: str, lock: tuple[int, int]) -> None:
        self.asleep = False
        """Whether writers notify."""
        self._connection = connection
        self._lock = lock
        self._notified = False
        self._inner, self._outer = socket.socketpair()
        self._outer.setblocking(False)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(self._inner, select.POLLIN)
        connection.add_notify_handler(self._note)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def sleep(self) -> bool:
        """Have writers notify from now on; False where one that does not has not ended, or somebody else sleeps."""
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s, %s)", self._lock).fetchone()
        self.asleep = row is not None and bool(row[0])
        return self.asleep

    def wake(self) -> None:
        """Have writers stay silent."""
        if self.asleep:
            self._connection.execute("SELECT pg_advisory_unlock(%s, %s)", self._lock)
            self.asleep = False

    def wait(self, seconds: float) -> None:
        """Return when something was notified or poked, or after ``seconds``."""
        for descriptor, _ in [] if self._notified else self._poll.poll(seconds * 1000):
            if descriptor == self._inner.fileno():
                self._inner.recv(4096)
            else:
                self._connection.pgconn.consume_input()
                while self._connection.pgconn.notifies() is not None:
                    pass
        self._notified = False

    def poke(self) -> None:
        """End the wait under way, or the next one."""
        with suppress(OSError):  # full, which wakes as well, or closed
            self._outer.send(b".")

    def close(self) -> None:
        """Let go of the sockets; the connection is its owner's."""
        self._inner.close()
        self._outer.close()

    def _note(self, _notify: psycopg.Notify) -> None:
        self._notified = True
