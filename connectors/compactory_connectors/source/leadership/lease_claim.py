"""The two ways in which Postgres knows who publishes a connector: a row that is renewed, or a lock of a session.

A row runs out by the server's clock. The lock stands in for it where the table of leases is not installed or may not be
written: it ends with its session, and a process that is frozen keeps its session.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol
from uuid import uuid4

from psycopg.rows import dict_row

from compactory.errors import ConfigError
from compactory_connectors.database.watched_connection import WatchedConnection
from compactory_sql import LEASE_LOCK_CLASS, query

from ..postgres.server import connector_lock

__all__ = ["TTL", "Claim", "LeaseConnection", "LeaseState", "choose_claim", "connect_lease", "new_holder"]

TTL: Final = 2.5
"""Seconds without a renewal after which a lease may be taken over."""

_UNNOTICED = "an older copy of the database that is put back may go unnoticed"
_CONNECT = 3  # seconds
_SILENCE = {"keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 3000}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """What the database says. ``holder``: in words, who else has it; ``epoch``: how often it changed hands."""

    mine: bool
    holder: str | None = None
    epoch: int | None = None


class LeaseConnection(WatchedConnection):
    """A connection for statements of milliseconds: one that says nothing for as long as a lease lasts is given up."""

    PATIENCE = TTL

    def _ask(self) -> None:
        self._give_up(f"no answer within {self.PATIENCE:g} s")


class Claim(Protocol):
    """One way, for one connector, process and connection. Owned by one thread at a time. Raises psycopg.Error."""

    means: str
    lacks: str | None
    """What this way does not protect from, and the remedy."""

    def take(self, *, absent: bool = True) -> LeaseState:
        """Renew it, or take it where it was given back; with ``absent`` also from a holder who is not to be seen."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


class RowClaim:
    """The connector's row in ``compactory.leases``."""

    means: str = "row"
    lacks: str | None

    def __init__(self, connection: LeaseConnection, connector: str, holder: str, *, remembers: bool) -> None:
        self.lacks = None if remembers else f"{_UNNOTICED}: the table of leases is an older one: compactory sql install"
        self._connection = connection
        self._given = {
            "connector": connector,
            "holder": holder,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "ttl": timedelta(seconds=TTL),
        }

    def take(self, *, absent: bool = True) -> LeaseState:
        """See :class:`Claim`. Two statements, so that waiting for another's lease writes nothing."""
        other = self._row("lease/look")
        if other is None or other["given_back"] or (absent and other["expired"]):
            claimed = self._row("lease/claim")
            if claimed is not None:
                return LeaseState(mine=True, epoch=claimed["epoch"])
            other = self._row("lease/look") or other
        assert other is not None  # a claim fails where another's row is in its way
        return LeaseState(mine=False, holder=other["words"], epoch=other["epoch"])

    def release(self) -> None:
        """See :class:`Claim`."""
        self._connection.execute(query("lease/release"), self._given)

    def _row(self, name: str) -> dict[str, Any] | None:
        return self._connection.cursor(row_factory=dict_row).execute(query(name), self._given).fetchone()


class LockClaim:
    """An advisory lock of the lease's session."""

    means: str = "lock"
    lacks: str | None

    def __init__(self, connection: LeaseConnection, connector: str, why: str) -> None:
        self._connection = connection
        self._given = {"class": LEASE_LOCK_CLASS, "key": connector_lock(connector)}
        self._held = False
        frozen = "a source that is frozen keeps the lock, and no standby takes over until it is ended"
        self.lacks = f"{frozen}; {_UNNOTICED}: {why}"

    def take(self, *, absent: bool = True) -> LeaseState:
        """See :class:`Claim`. A lock that is given back is as one whose holder is not to be seen."""
        if self._held:
            self._connection.execute(query("lease/alive"))
        elif absent:
            row = self._connection.execute(query("lease/lock"), self._given).fetchone()
            self._held = row is not None and bool(row[0])
        if self._held:
            return LeaseState(mine=True)
        other = self._connection.execute(query("lease/locked_by"), self._given).fetchone()
        return LeaseState(mine=False, holder=str(other[0]) if other is not None else "one that may come back")

    def release(self) -> None:
        """See :class:`Claim`."""
        self._connection.execute(query("lease/unlock"), self._given)
        self._held = False


def connect_lease(conninfo: Mapping[str, Any]) -> LeaseConnection:
    """A connection of a lease's own, in autocommit; its name says who has it. Raises psycopg.Error."""
    name = f"compactory-lease pid {os.getpid()} on host {socket.gethostname()}"
    own = {"connect_timeout": _CONNECT, "application_name": name[:63], **_SILENCE}
    return LeaseConnection.to({**conninfo, **own})


def new_holder() -> str:
    """A name that no other process, nor this one before, has used."""
    return str(uuid4())


def choose_claim(connection: LeaseConnection, connector: str, holder: str) -> Claim:
    """The better of the ways that this database allows. Raises psycopg.Error, and ConfigError for a standby."""
    patience = {"patience": f"{TTL:g}s"}
    row = connection.cursor(row_factory=dict_row).execute(query("lease/means"), patience).fetchone()
    assert row is not None
    if row["standby"]:
        raise ConfigError(
            "the source needs a read-write server, and this one is a standby; point connection.url at the primary"
            " (several hosts and targetServerType=primary find it)"
        )
    if row["writable"]:
        return RowClaim(connection, connector, holder, remembers=bool(row["remembers"]))
    if row["installed"]:
        why = f"{row['role']} may not write the lease: GRANT USAGE ON SCHEMA compactory TO {row['role']};"
        return LockClaim(
            connection, connector, f"{why} GRANT SELECT, INSERT, UPDATE ON compactory.leases TO {row['role']};"
        )
    return LockClaim(connection, connector, "install the table of leases with: compactory sql install")
