"""Locks of adoption: short transactions that are tried again, and one adoption of a table at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.rows import scalar_row

from compactory.errors import Unreachable
from compactory_sql import ADOPT_LOCK_CLASS, query

from ..postgres.session import Connection

__all__ = ["Patience", "adopting", "in_short_transaction"]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Waits for locks: ``tries`` times ``lock_timeout`` seconds, with pauses of ``pause`` seconds, doubled each time.

    A try is short, because every other statement on the table waits behind the request for an exclusive lock. The
    pauses let these statements run.
    """

    lock_timeout: float = 2.0
    tries: int = 5
    pause: float = 0.5

    def pauses(self) -> Iterator[float]:
        """Seconds between the tries."""
        return (self.pause * 2**number for number in range(self.tries - 1))


def in_short_transaction(
    connection: Connection,
    tables: Sequence[int],
    patience: Patience,
    progress: Callable[[str], None],
    work: Callable[[], None],
) -> None:
    """Call ``work`` in a transaction, and again if a lock was not granted in time.

    ``work`` limits its own waits (``SET LOCAL lock_timeout``). Raises Unreachable, with the sessions that hold locks on
    the tables, after the last try. Then nothing is changed.
    """
    for pause in (*patience.pauses(), None):
        try:
            with connection.transaction():
                work()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            holders = _blockers(connection, tables)
            if pause is None:
                raise Unreachable(
                    "Postgres",
                    f"the lock was not got in {patience.tries} tries of {patience.lock_timeout:g} s, and nothing was "
                    f"changed; held by {holders}. Try again when that has ended",
                ) from error
            progress(f"waiting for a lock held by {holders}")
            time.sleep(pause)
        else:
            return


@contextmanager
def adopting(connection: Connection, oid: int, patience: Patience) -> Iterator[None]:
    """Hold the lock of a table's adoption. Raises Unreachable with the holder's pid if it is not granted in time."""
    parameters = {"lock_class": ADOPT_LOCK_CLASS, "oid": oid}
    pauses = patience.pauses()
    while not _scalar(connection, "adoption/lock", parameters):
        pause = next(pauses, None)
        if pause is None:
            pid = _scalar(connection, "adoption/lock_holder", parameters)
            raise Unreachable("Postgres", f"pid {pid} is adopting this table; try again when it has ended")
        time.sleep(pause)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(query("adoption/unlock"), parameters)


def _blockers(connection: Connection, tables: Sequence[int]) -> str:
    with connection.cursor(row_factory=scalar_row) as cursor:
        sessions = cursor.execute(query("adoption/blockers"), {"oids": list(tables)}).fetchall()
    return "; ".join(sessions) or "a transaction that has ended by now"


def _scalar(connection: Connection, name: str, parameters: dict[str, int]) -> object:
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(query(name), parameters).fetchone()
