"""The transaction at the floor of every snapshot: open for long, it makes what a source has to remember grow.

Below the floor everything has ended. Above it a table that is left as it is has its visible transactions remembered one
by one; an adopted one is read as before, but pages of a first load and what a crash could take back wait as well. Only
a transaction with an id counts, in any database of the server, prepared ones included. Replication slots,
``hot_standby_feedback`` and transactions that only read hold the horizon of VACUUM back, which is another one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psycopg.rows import dict_row

from compactory_sql import query

from ..postgres.open_transaction import OpenTransaction

if TYPE_CHECKING:
    from ..control.status import StatusBoard
    from ..postgres.server import Server

__all__ = ["OldestTransaction", "holders"]

EVERY = 5.0
"""Seconds between two looks."""
NOTICED = 10.0
"""Seconds for which a transaction may be open before it is worth a word."""


class OldestTransaction:
    """Looks now and then who holds the floor back, and tells the board. Owned by the session's thread.

    Raises psycopg.Error.
    """

    def __init__(self, server: Server, board: StatusBoard) -> None:
        self._server = server
        self._board = board
        self._due = 0.0
        self._first_seen: dict[int, float] = {}

    def look(self) -> None:
        """Show the transaction, where one has been open for long."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY
        now = time.time()
        found = holders(self._server)
        self._first_seen = {each.xid: self._first_seen.get(each.xid, now) for each in found}
        dated = [each if each.since is not None else replace(each, since=self._first_seen[each.xid]) for each in found]
        self._board.floor(next((each for each in dated if now - (each.since or now) >= NOTICED), None))


def holders(server: Server, xid: int | None = None) -> list[OpenTransaction]:
    """Who runs or has prepared the transaction with this 64-bit id, or that at the floor now. Raises psycopg.Error."""
    wanted = {"xid": None if xid is None else str(xid % (1 << 32))}
    now = time.time()
    found = server.connection.cursor(row_factory=dict_row).execute(query("source/holders"), wanted).fetchall()
    return [_holder(row, now) for row in found]


def _holder(row: dict[str, Any], now: float) -> OpenTransaction:
    ages = ((name, row[name]) for name in ("since", "query_since"))
    moments: dict[str, Any] = {name: None if age is None else now - age for name, age in ages}
    return OpenTransaction(**{**row, **moments})
