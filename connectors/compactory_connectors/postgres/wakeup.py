"""Waiting for writers that send NOTIFY only while somebody sleeps (ADR 0008): the sleeper holds an advisory lock.

A writer's transaction shares that lock until it has ended, or notifies where it can't. So the sleeper that has the lock
misses only those that committed before: it looks once more after taking the lock.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from compactory_sql import query

from .snapshot import Snapshot

__all__ = ["Slept", "Wakeup"]


@dataclass(frozen=True, slots=True)
class Slept:
    """The keys that were fallen asleep for, and the snapshot after that.

    ``shared`` are keys for which another connection sleeps: nobody says when that one wakes or ends. A key in neither
    set has a writer whose transaction found nobody asleep, and has not ended.
    """

    asleep: frozenset[int]
    shared: frozenset[int]
    snapshot: Snapshot


class Wakeup:
    """One channel and its locks, on a connection in autocommit that a thread owns.

    ``lock`` is the class of the locks and the key that :meth:`sleep` takes; :meth:`sleep_for` takes others of the
    class. A key has 32 bits. Without ``listen`` it listens from its first sleep on: a session that listens and is in a
    long transaction keeps the server's queue of notifications from being emptied. :meth:`poke` may be called by any
    thread. Raises psycopg.Error.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], channel: str, lock: tuple[int, int], *, listen: bool = True
    ) -> None:
        self.keys: set[int] = set()
        """Keys whose writers notify now."""
        self.listening = False
        """Whether it subscribed to the channel."""
        self._connection = connection
        self._channel = channel
        self._class, self._key = lock
        self._notified: set[str] = set()
        self._inner, self._outer = socket.socketpair()
        self._outer.setblocking(False)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(self._inner, select.POLLIN)
        connection.add_notify_handler(self._note)
        if listen:
            self.listen()

    @property
    def asleep(self) -> bool:
        """Whether writers notify."""
        return bool(self.keys)

    def listen(self) -> None:
        """Subscribe to the channel; once more where a pooler has discarded that."""
        self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self.listening = True

    def sleep(self) -> bool:
        """Have writers notify from now on; False where one that does not has not ended, or somebody else sleeps."""
        return self.asleep or bool(self._lock([self._key])[0])

    def sleep_for(self, keys: Iterable[int]) -> Slept:
        """Have the writers of these keys notify from now on, where all that would not have ended."""
        if not self.listening:
            self.listen()
        wanted = set(keys)
        locked, snapshot = self._lock(wanted)
        shared: frozenset[int] = frozenset()
        if refused := wanted - locked:
            shared, snapshot = self._sleepers(refused)
        return Slept(locked, shared, snapshot)

    def wake(self, keys: Iterable[int] | None = None) -> None:
        """Have the writers of these keys stay silent, where they notify; None: of all."""
        awake = self.keys.copy() if keys is None else self.keys.intersection(keys)
        if awake:
            self._connection.execute(self._statement("database/wake", awake))
            self.keys -= awake

    def wait(self, seconds: float) -> set[str]:
        """Return when something was notified or poked, or after ``seconds``: the payloads that came since the last."""
        for descriptor, _ in [] if self._notified else self._poll.poll(max(0.0, seconds * 1000)):
            if descriptor == self._inner.fileno():
                self._inner.recv(4096)
            else:
                self._receive()
        notified, self._notified = self._notified, set()
        return notified

    def poke(self) -> None:
        """End the wait under way, or the next one."""
        with suppress(OSError):  # full, which wakes as well, or closed
            self._outer.send(b".")

    def close(self) -> None:
        """Let go of the sockets; the connection is its owner's."""
        self._inner.close()
        self._outer.close()

    def _lock(self, keys: Iterable[int]) -> tuple[frozenset[int], Snapshot]:
        locked, snapshot = self._found(self._statement("database/sleep", keys))
        self.keys |= locked
        return locked, snapshot

    def _sleepers(self, keys: Iterable[int]) -> tuple[frozenset[int], Snapshot]:
        """Those of these keys for which another connection sleeps, and the snapshot after that was found."""
        return self._found(self._statement("database/sleepers", keys))

    def _statement(self, name: str, keys: Iterable[int]) -> sql.Composed:
        signed = [key - (1 << 32) if key >= 1 << 31 else key for key in keys]
        return sql.SQL(query(name)).format(**{"class": sql.Literal(self._class), "keys": sql.Literal(signed)})

    def _found(self, statements: sql.Composed) -> tuple[frozenset[int], Snapshot]:
        """The keys that the first statement finds, and the snapshot that the second one takes."""
        cursor = self._connection.execute(statements)
        found = frozenset(key % (1 << 32) for (key,) in cursor)
        cursor.nextset()
        row = cursor.fetchone()
        assert row is not None
        return found, Snapshot.parse(row[0])

    def _receive(self) -> None:
        connection = self._connection.pgconn
        connection.consume_input()
        while (notify := connection.notifies()) is not None:
            self._note(psycopg.Notify(notify.relname.decode(), notify.extra.decode(), notify.be_pid))

    def _note(self, notify: psycopg.Notify) -> None:
        if notify.channel == self._channel:
            self._notified.add(notify.payload)
