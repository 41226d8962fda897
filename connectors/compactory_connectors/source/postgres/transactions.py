"""Transactions of the server: the oldest one that runs, and those whose row versions a snapshot showed.

The oldest running transaction is the floor of every snapshot. Below it everything has ended. Above it, a source
remembers the visible transactions of an untouched table one by one. An adopted table is read as usual, but pages of a
first load and what a crash could take back wait as well. Only a transaction with an id counts, in any database of the
server, prepared ones included. Replication slots, ``hot_standby_feedback`` and transactions that only read hold the
horizon of VACUUM back, which is another one.

A row that was frozen 2³² transactions ago still shows its ``xmin``. A transaction that runs under the same 32 bits now
was not seen, nor were its savepoints, whose ids no snapshot lists.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from psycopg import sql
from psycopg.rows import class_row

from compactory_connectors.postgres.snapshot import Snapshot
from compactory_sql import query

from .server import Server, statement

__all__ = ["OldestTransaction", "OpenTransaction", "open_transactions", "recent_xids", "seen_xids"]

EVERY = 5.0
"""Seconds between two queries for the oldest transaction."""
NOTICED = 10.0
"""Seconds after which an open transaction is shown to operators."""

_EPOCH = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A running or prepared transaction and its session. Times in seconds since 1970, by the clock of this host.

    A value is None where this role may not see it (times of others need ``pg_read_all_stats``; ``since`` is then the
    time when it was first seen), or where a prepared transaction has none. The text of the query is left out: it may
    hold values of rows.
    """

    xid: int
    database: str | None
    user: str | None
    pid: int | None = None
    application: str | None = None
    state: str | None = None
    since: float | None = None
    query_since: float | None = None
    gid: str | None = None

    def __str__(self) -> str:
        began = f"open since {_clock(self.since)}" if self.since is not None else "open since a time not shown to us"
        if self.gid is not None:
            return f"prepared transaction {self.gid!r} of user {self.user} in {self.database}, {began}"
        last = f", last query begun {_clock(self.query_since)}" if self.query_since is not None else ""
        session = f"user {self.user}, application {self.application or 'without a name'}"
        return f"pid {self.pid} ({session}, {self.state or 'state not shown to us'}) in {self.database}, {began}{last}"


class OldestTransaction:
    """Watches for a transaction that has been open for long. Owned by the session's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._due = 0.0
        self._first_seen: dict[int, float] = {}
        self._oldest: OpenTransaction | None = None

    def check(self) -> OpenTransaction | None:
        """Return the transaction that has been open for long, by a query every few seconds. Raises psycopg.Error."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY
            clock = time.time()
            running = open_transactions(self._server)
            self._first_seen = {item.xid: self._first_seen.get(item.xid, clock) for item in running}
            dated = [replace(item, since=item.since or self._first_seen[item.xid]) for item in running]
            self._oldest = next((item for item in dated if clock - (item.since or clock) >= NOTICED), None)
        return self._oldest


def open_transactions(server: Server, xid: int | None = None) -> list[OpenTransaction]:
    """Return the transaction with this 64-bit id, running or prepared, or else the oldest one. Raises psycopg.Error."""
    parameters = {"xid": None if xid is None else str(xid % _EPOCH), "clock": time.time()}
    cursor = server.connection.cursor(row_factory=class_row(OpenTransaction))
    return cursor.execute(query("source/open_transactions"), parameters).fetchall()


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def recent_xids(xids: Iterable[bytes], snapshot: Snapshot) -> set[bytes]:
    """Return those of these 32-bit ids of row versions that the snapshot's floor does not cover."""
    last = snapshot.xmax - 1
    return {xid for xid in xids if last - (last - int(xid)) % _EPOCH >= snapshot.xmin}


def seen_xids(server: Server, snapshot: Snapshot, xids: Iterable[bytes | str]) -> set[int]:
    """Return in 64 bits the ids above the snapshot's floor of which it certainly showed all rows.

    ``xids`` are the 32 bits that visible rows show. The rows of an id that is left out are sent once more.
    Raises psycopg.Error.
    """
    last = snapshot.xmax - 1  # an id is older than that by less than 2³²
    wide = {last - (last - xid) % _EPOCH for xid in map(int, xids)}
    young = {xid for xid in wide if xid >= snapshot.xmin and xid not in snapshot.xip}
    if snapshot.xmax < _EPOCH or not snapshot.xip or not young:
        return young
    ended = _with_status(server, young, "source/ended_ids")
    # A savepoint's id may have ended since the snapshot. Its transaction has ended too then, and is queried later.
    oldest = min(({*snapshot.xip} - _with_status(server, snapshot.xip, "source/running_ids")), default=snapshot.xmax)
    return {xid for xid in ended if xid < oldest}


def _with_status(server: Server, xids: Iterable[int], name: str) -> set[int]:
    return {int(xid) for xid in server.column(statement(name, xids=sql.Literal([str(xid) for xid in xids])))}
