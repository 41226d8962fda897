"""The oldest running transaction of the server: while it is open, a source has to remember more and more.

It is the floor of every snapshot. Below it everything has ended. Above it a table that is left as it is has its visible
transactions remembered one by one; an adopted one is read as before, but pages of a first load and what a crash could
take back wait as well. Only a transaction with an id counts, in any database of the server, prepared ones included.
Replication slots, ``hot_standby_feedback`` and transactions that only read hold the horizon of VACUUM back, which is
another one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from psycopg.rows import dict_row

from compactory_sql import query

from .server import Server

__all__ = ["OldestTransaction", "OpenTransaction", "holders"]

EVERY = 5.0
"""Seconds between two looks."""
NOTICED = 10.0
"""Seconds for which a transaction may be open before it is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A running or prepared transaction and its session. Times in seconds since 1970, by the clock of this host.

    None is what this role is not shown (others' times need ``pg_read_all_stats``; then ``since`` is when it was first
    seen), or what a prepared one has not. The text of the query is left out: it may hold values of rows.
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
        began = f"open since {_moment(self.since)}" if self.since is not None else "open since a time not shown to us"
        if self.gid is not None:
            return f"prepared transaction {self.gid!r} of user {self.user} in {self.database}, {began}"
        last = f", last query begun {_moment(self.query_since)}" if self.query_since is not None else ""
        who = f"user {self.user}, application {self.application or 'without a name'}"
        return f"pid {self.pid} ({who}, {self.state or 'state not shown to us'}) in {self.database}, {began}{last}"


class OldestTransaction:
    """Looks now and then for a transaction that has been open for long. Owned by the session's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._due = 0.0
        self._first_seen: dict[int, float] = {}
        self._found: OpenTransaction | None = None

    def look(self) -> OpenTransaction | None:
        """The transaction, where one has been open for long, as the last look found it. Raises psycopg.Error."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY
            now = time.time()
            found = holders(self._server)
            self._first_seen = {each.xid: self._first_seen.get(each.xid, now) for each in found}
            dated = [replace(each, since=each.since or self._first_seen[each.xid]) for each in found]
            self._found = next((each for each in dated if now - (each.since or now) >= NOTICED), None)
        return self._found


def holders(server: Server, xid: int | None = None) -> list[OpenTransaction]:
    """The transaction with this 64-bit id, running or prepared, or else the oldest one now. Raises psycopg.Error."""
    wanted = {"xid": None if xid is None else str(xid % (1 << 32))}
    now = time.time()
    found = server.connection.cursor(row_factory=dict_row).execute(query("source/holders"), wanted).fetchall()
    for row in found:
        row |= {name: now - row[name] for name in ("since", "query_since") if row[name] is not None}
    return [OpenTransaction(**row) for row in found]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
