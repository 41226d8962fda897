"""The alarm clock of a source: while it sleeps for a table, that table's writers notify it.

For each sleeping table an advisory lock is held, which tells the statement triggers to send NOTIFY (ADR 0008). Asleep,
every commit that comes after the lock notifies; awake, none does.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from compactory_connectors.database.snapshot import Snapshot
from compactory_sql import WAKEUP_CHANNEL, WAKEUP_LOCK_CLASS, query

__all__ = ["Listener", "Slept"]

_CLASS = sql.Literal(WAKEUP_LOCK_CLASS)


@dataclass(frozen=True, slots=True)
class Slept:
    """What came of falling asleep for some tables, and the snapshot after that.

    ``shared`` are tables for which another source sleeps: nobody says when it wakes or ends. What is in neither set has
    a writer whose transaction saw this source awake, and has not ended.
    """

    asleep: frozenset[int]
    shared: frozenset[int]
    snapshot: Snapshot


class Listener:
    """The wake-up side of a source's connection. Owned by the session's thread. Raises psycopg.Error."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.asleep: set[int] = set()
        """Oids of the tables whose writers notify now."""
        self._connection = connection
        self._listening = False
        self._notified: set[int] = set()
        self._socket = select.poll()
        self._socket.register(connection.fileno(), select.POLLIN)
        connection.add_notify_handler(self._note)

    def listen(self) -> None:
        """Subscribe to the notifications of adopted tables."""
        self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(WAKEUP_CHANNEL)))
        self._listening = True

    def lost(self, listening: bool) -> bool:
        """Whether this connection should listen, and the server says that it does not."""
        return self._listening and not listening

    def sleep(self, oids: Sequence[int]) -> Slept:
        """Have the writers of these tables notify from now on, where all that would not have ended."""
        if not self._listening:
            self.listen()
        taken = sql.SQL(query("source/sleep")).format(**{"class": _CLASS, "oids": sql.Literal(_keys(oids))})
        keys, snapshot = self._found(taken)
        locked = frozenset(_oid(key) for key in keys)
        self.asleep |= locked
        refused = set(oids) - locked
        shared, snapshot = self._sleepers(refused) if refused else (frozenset(), snapshot)
        return Slept(locked, shared, snapshot)

    def wake(self, oids: Iterable[int]) -> None:
        """Have the writers of these tables stay silent, where they notify."""
        awake = self.asleep.intersection(oids)
        if awake:
            keys = sql.Literal(_keys(awake))
            self._connection.execute(sql.SQL(query("source/wake")).format(**{"class": _CLASS, "oids": keys}))
            self.asleep -= awake

    def take(self) -> set[int]:
        """Oids of tables that notified since this was last called; does not wait."""
        if self._socket.poll(0):
            self._receive()
        notified, self._notified = self._notified, set()
        return notified

    def wait(self, seconds: float) -> bool:
        """Wait for a notification for at most ``seconds``; whether there is one."""
        if not self._notified and self._socket.poll(seconds * 1000):
            self._receive()
        return bool(self._notified)

    def _sleepers(self, oids: Iterable[int]) -> tuple[frozenset[int], Snapshot]:
        """Those of these tables for which another source sleeps, and the snapshot after that was found."""
        keys = sql.Literal(list(oids))
        found, snapshot = self._found(sql.SQL(query("source/sleepers")).format(**{"class": _CLASS, "oids": keys}))
        return frozenset(found), snapshot

    def _found(self, statements: sql.Composed) -> tuple[list[int], Snapshot]:
        """What the first statement finds, and the snapshot that the second one takes."""
        cursor = self._connection.execute(statements)
        found = [number for (number,) in cursor]
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
        if notify.channel == WAKEUP_CHANNEL and notify.payload.isdecimal():
            self._notified.add(int(notify.payload))


def _keys(oids: Iterable[int]) -> list[int]:
    """Keys of locks: the bits of an oid, which may not fit a signed integer."""
    return [oid - (1 << 32) if oid >= 1 << 31 else oid for oid in oids]


def _oid(key: int) -> int:
    return key % (1 << 32)
