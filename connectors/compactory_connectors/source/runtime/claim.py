"""The two ways in which Postgres knows who publishes a connector: a row that is renewed, or a lock of a session.

A row runs out by the server's clock. The lock stands in for it where the table of leases is not installed or may not be
written: it ends with its session, and a process that is frozen keeps its session.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

from psycopg.rows import dict_row

from compactory.errors import ConfigError
from compactory_connectors.postgres.watched_connection import WatchedConnection
from compactory_sql import LEASE_LOCK_CLASS, query

from ..postgres.server import STANDBY, connector_lock
from ..status.status import LeaseStatus

__all__ = ["TTL", "Claim", "LeaseConnection", "choose_claim", "connect_lease"]

TTL: Final = 2.5
"""Seconds without a renewal after which a lease may be taken over."""

_UNNOTICED = "an older copy of the database that is put back may go unnoticed"
_CONNECT = 3  # seconds
_SILENCE = {"keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 3000}


class LeaseConnection(WatchedConnection):
    """A connection for statements of milliseconds: one that says nothing for as long as a lease lasts is given up."""

    PATIENCE = TTL

    def _ask(self) -> None:
        self._give_up(f"no answer within {self.PATIENCE:g} s")


class RowClaim:
    """The connector's row in ``compactory.leases``. Owned by one thread at a time. Raises psycopg.Error.

    ``kind`` names the way; ``lacks`` names a danger that it does not protect from, with the remedy.
    """

    kind = "lease_table"

    def __init__(self, connection: LeaseConnection, connector: str, holder: str, lacks: str | None) -> None:
        self.lacks = lacks
        self._connection = connection
        self._given = {
            "connector": connector,
            "holder": holder,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "ttl": timedelta(seconds=TTL),
        }

    def take(self, *, absent: bool = True) -> LeaseStatus:
        """Renew it, or take it where it was given back; with ``absent`` also where it ran out.

        Two statements, so that waiting for another's lease writes nothing.
        """
        other = self._row("lease/holder")
        if other is None or other["given_back"] or (absent and other["expired"]):
            claimed = self._row("lease/claim")
            if claimed is not None:
                return self._status(held=True, epoch=claimed["epoch"])
            other = self._row("lease/holder") or other
        if other is None:  # another's row was in the way, and has gone since
            return self._status(held=False, holder="one that has ended meanwhile")
        return self._status(held=False, holder=other["words"], epoch=other["epoch"])

    def release(self) -> None:
        """Give it back."""
        self._connection.execute(query("lease/release"), self._given)

    def _status(self, **found: Any) -> LeaseStatus:
        return LeaseStatus(kind=self.kind, lacks=self.lacks, **found)

    def _row(self, name: str) -> dict[str, Any] | None:
        return self._connection.cursor(row_factory=dict_row).execute(query(name), self._given).fetchone()


class LockClaim:
    """An advisory lock of the lease's session. See :class:`RowClaim`."""

    kind = "advisory_lock"

    def __init__(self, connection: LeaseConnection, connector: str, remedy: str) -> None:
        frozen = "a source that is frozen keeps the lock, and no standby takes over until it is ended"
        self.lacks: str | None = f"{frozen}; {_UNNOTICED}: {remedy}"
        self._connection = connection
        self._given = {"class": LEASE_LOCK_CLASS, "key": connector_lock(connector)}
        self._held = False

    def take(self, *, absent: bool = True) -> LeaseStatus:
        """Hold it, or take it with ``absent``: a released lock looks the same as one whose holder cannot be seen."""
        if self._held:
            self._connection.execute(query("lease/ping"))
        elif absent:
            row = self._connection.execute(query("lease/lock"), self._given).fetchone()
            self._held = row is not None and bool(row[0])
        if self._held:
            return LeaseStatus(held=True, kind=self.kind, lacks=self.lacks)
        other = self._connection.execute(query("lease/locked_by"), self._given).fetchone()
        holder = str(other[0]) if other is not None else "one that may come back"
        return LeaseStatus(held=False, kind=self.kind, lacks=self.lacks, holder=holder)

    def release(self) -> None:
        """Give it back."""
        self._connection.execute(query("lease/unlock"), self._given)
        self._held = False


Claim: TypeAlias = RowClaim | LockClaim


def connect_lease(conninfo: Mapping[str, Any]) -> LeaseConnection:
    """A connection of a lease's own, in autocommit; its name says who has it. Raises psycopg.Error."""
    name = f"compactory-lease pid {os.getpid()} on host {socket.gethostname()}"
    own = {"connect_timeout": _CONNECT, "application_name": name[:63], **_SILENCE}
    return LeaseConnection.to({**conninfo, **own})


def choose_claim(connection: LeaseConnection, connector: str, holder: str) -> Claim:
    """The better of the ways that this database allows. Raises psycopg.Error, and ConfigError for a standby."""
    patience = {"patience": f"{TTL:g}s"}
    row = connection.cursor(row_factory=dict_row).execute(query("lease/server"), patience).fetchone()
    assert row is not None
    if row["standby"]:
        raise ConfigError(STANDBY)
    if row["writable"]:
        older = f"{_UNNOTICED}: the table of leases is an older one: compactory sql install"
        return RowClaim(connection, connector, holder, None if row["remembers"] else older)
    if not row["installed"]:
        return LockClaim(connection, connector, "install the table of leases with: compactory sql install")
    role = row["role"]
    grants = f"GRANT USAGE ON SCHEMA compactory TO {role}; GRANT SELECT, INSERT, UPDATE ON compactory.leases TO {role};"
    return LockClaim(connection, connector, f"{role} may not write the lease: {grants}")
