"""Waits for writers that send NOTIFY only while a reader sleeps (ADR 0008): the sleeping reader holds an advisory lock.

A writer's transaction holds the same lock in shared mode until its end, and notifies if a reader has the lock. So a
reader that has the lock can have missed only writers that ended before: it reads the table once more after locking.
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

__all__ = ["Slept", "Wakeup", "receive_notifications"]


@dataclass(frozen=True, slots=True)
class Slept:
    """The keys that were locked, and a snapshot taken after that.

    ``shared`` are keys that another reader has locked; nothing tells when it unlocks them. A key in neither set has a
    writer that will not notify and whose transaction has not ended.
    """

    asleep: frozenset[int]
    shared: frozenset[int]
    snapshot: Snapshot


class Wakeup:
    """Sleep and notifications of one channel, on a connection in autocommit. Owned by one thread, except :meth:`poke`.

    ``lock`` is the class of the advisory locks and the key that :meth:`sleep` locks. :meth:`sleep_for` locks other keys
    of the class. A key has 32 bits. Without ``listen`` the LISTEN is sent with the first sleep: a session that listens
    and has a long transaction keeps the server from emptying its queue of notifications. Raises psycopg.Error.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], channel: str, lock: tuple[int, int], *, listen: bool = True
    ) -> None:
        self.keys: set[int] = set()
        """Keys whose writers notify now."""
        self.listening = False
        """True once LISTEN was sent."""
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
        """True while a lock is held, so that writers notify."""
        return bool(self.keys)

    def listen(self) -> None:
        """Send LISTEN; call again after a pooler has discarded it."""
        self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self.listening = True

    def sleep(self) -> bool:
        """Make writers notify. Return False if a writer that does not notify still runs, or another reader sleeps."""
        return self.asleep or bool(self._lock([self._key])[0])

    def sleep_for(self, keys: Iterable[int]) -> Slept:
        """Make the writers of these keys notify, except keys with a running writer that does not notify."""
        if not self.listening:
            self.listen()
        requested = set(keys)
        locked, snapshot = self._lock(requested)
        shared: frozenset[int] = frozenset()
        if refused := requested - locked:
            shared, snapshot = self._sleepers(refused)
        return Slept(locked, shared, snapshot)

    def wake(self, keys: Iterable[int] | None = None) -> None:
        """Stop the notifications for these keys; None: for all keys."""
        awake = self.keys.copy() if keys is None else self.keys.intersection(keys)
        if awake:
            self._connection.execute(self._statement("database/wake", awake))
            self.keys -= awake

    def wait(self, seconds: float) -> set[str]:
        """Wait up to ``seconds`` for a notification or :meth:`poke`; return the payloads since the last call."""
        for descriptor, _ in [] if self._notified else self._poll.poll(max(0.0, seconds * 1000)):
            if descriptor == self._inner.fileno():
                self._inner.recv(4096)
            else:
                receive_notifications(self._connection)
        notified, self._notified = self._notified, set()
        return notified

    def poke(self) -> None:
        """End the current :meth:`wait`, or the next one. Thread-safe."""
        with suppress(OSError):  # full, which wakes as well, or closed
            self._outer.send(b".")

    def close(self) -> None:
        """Close the sockets. The connection stays open: its owner closes it."""
        self._inner.close()
        self._outer.close()

    def _lock(self, keys: Iterable[int]) -> tuple[frozenset[int], Snapshot]:
        locked, snapshot = self._keys_and_snapshot(self._statement("database/sleep", keys))
        self.keys |= locked
        return locked, snapshot

    def _sleepers(self, keys: Iterable[int]) -> tuple[frozenset[int], Snapshot]:
        """Return the keys that another reader has locked, and a snapshot taken after that."""
        return self._keys_and_snapshot(self._statement("database/sleepers", keys))

    def _statement(self, name: str, keys: Iterable[int]) -> sql.Composed:
        signed = [key - (1 << 32) if key >= 1 << 31 else key for key in keys]
        return sql.SQL(query(name)).format(**{"class": sql.Literal(self._class), "keys": sql.Literal(signed)})

    def _keys_and_snapshot(self, statements: sql.Composed) -> tuple[frozenset[int], Snapshot]:
        """Return the keys that the first statement returns, and the snapshot that the second one returns."""
        cursor = self._connection.execute(statements)
        returned = frozenset(key % (1 << 32) for (key,) in cursor)
        cursor.nextset()
        row = cursor.fetchone()
        assert row is not None
        return returned, Snapshot.parse(row[0])

    def _note(self, notify: psycopg.Notify) -> None:
        if notify.channel == self._channel:
            self._notified.add(notify.payload)


def receive_notifications(connection: psycopg.Connection[Any]) -> None:
    """Give the notifications that have arrived to the handlers of the connection. Never waits."""
    connection.pgconn.consume_input()
    while (notify := connection.pgconn.notifies()) is not None:
        if connection.pgconn.notify_handler is not None:
            connection.pgconn.notify_handler(notify)
