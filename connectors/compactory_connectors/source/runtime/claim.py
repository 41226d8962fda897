"""Two ways to record in Postgres which source publishes a connector: a row that is renewed, or a lock of a session.

A row expires by the server's clock. The lock stands in for it where the table of leases is not installed or may not be
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

_UNDETECTED = "an older copy of the database that is put back may go unnoticed"
_CONNECT_TIMEOUT = 3  # seconds
_KEEPALIVE = {"keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 3000}


class LeaseConnection(WatchedConnection):
    """A connection for short statements; it is closed when it does not answer for as long as a lease lasts."""

    PATIENCE = TTL

    def _ask(self) -> None:
        self._give_up(f"no answer within {self.PATIENCE:g} s")


class RowClaim:
    """The connector's row in ``compactory.leases``. Owned by one thread at a time. Raises psycopg.Error."""

    kind = "lease_table"

    def __init__(self, connection: LeaseConnection, connector: str, holder: str) -> None:
        self._connection = connection
        self._parameters = {
            "connector": connector,
            "holder": holder,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "ttl": timedelta(seconds=TTL),
        }

    def take(self, *, absent: bool = True) -> LeaseStatus:
        """Renew the lease, or take one that was given back; with ``absent`` also one that has expired.

        Two statements, so that waiting for another source's lease writes nothing.
        """
        holder = self._row("lease/holder")
        if holder is None or holder["given_back"] or (absent and holder["expired"]):
            claimed = self._row("lease/claim")
            if claimed is not None:
                return self._status(held=True, epoch=claimed["epoch"])
            holder = self._row("lease/holder") or holder
        if holder is None:  # another source's row was in the way, and was deleted since
            return self._status(held=False, holder="one that has ended meanwhile")
        return self._status(held=False, holder=holder["words"], epoch=holder["epoch"])

    def release(self) -> None:
        self._connection.execute(query("lease/release"), self._parameters)

    def _status(self, **fields: Any) -> LeaseStatus:
        return LeaseStatus(kind=self.kind, **fields)

    def _row(self, name: str) -> dict[str, Any] | None:
        return self._connection.cursor(row_factory=dict_row).execute(query(name), self._parameters).fetchone()


class LockClaim:
    """An advisory lock of the lease's connection. See :class:`RowClaim`.

    ``lacks`` names the dangers that a lock does not protect from, with the remedy.
    """

    kind = "advisory_lock"

    def __init__(self, connection: LeaseConnection, connector: str, remedy: str) -> None:
        frozen = "a source that is frozen keeps the lock, and no standby takes over until it is ended"
        self.lacks: str | None = f"{frozen}; {_UNDETECTED}: {remedy}"
        self._connection = connection
        self._parameters = {"class": LEASE_LOCK_CLASS, "key": connector_lock(connector)}
        self._is_held = False

    def take(self, *, absent: bool = True) -> LeaseStatus:
        """Keep the lock, or take it with ``absent``: a released lock looks like one whose holder can't be seen."""
        if self._is_held:
            self._connection.execute(query("lease/ping"))
        elif absent:
            row = self._connection.execute(query("lease/lock"), self._parameters).fetchone()
            self._is_held = row is not None and bool(row[0])
        if self._is_held:
            return LeaseStatus(held=True, kind=self.kind, lacks=self.lacks)
        row = self._connection.execute(query("lease/locked_by"), self._parameters).fetchone()
        holder = str(row[0]) if row is not None else "one that may come back"
        return LeaseStatus(held=False, kind=self.kind, lacks=self.lacks, holder=holder)

    def release(self) -> None:
        self._connection.execute(query("lease/unlock"), self._parameters)
        self._is_held = False


Claim: TypeAlias = RowClaim | LockClaim


def connect_lease(conninfo: Mapping[str, Any]) -> LeaseConnection:
    """Return a connection for a lease, in autocommit; its application name tells the holder. Raises psycopg.Error."""
    name = f"compactory-lease pid {os.getpid()} on host {socket.gethostname()}"
    settings = {"connect_timeout": _CONNECT_TIMEOUT, "application_name": name[:63], **_KEEPALIVE}
    return LeaseConnection.to({**conninfo, **settings})


def choose_claim(connection: LeaseConnection, connector: str, holder: str) -> Claim:
    """Return the better of the claims that this database allows. Raises psycopg.Error; ConfigError for a standby."""
    parameters = {"patience": f"{TTL:g}s"}
    row = connection.cursor(row_factory=dict_row).execute(query("lease/server"), parameters).fetchone()
    assert row is not None
    if row["standby"]:
        raise ConfigError(STANDBY)
    if row["writable"]:
        return RowClaim(connection, connector, holder)
    if not row["installed"]:
        return LockClaim(connection, connector, "install the table of leases with: compactory sql install")
    role = row["role"]
    grants = f"GRANT USAGE ON SCHEMA compactory TO {role}; GRANT SELECT, INSERT, UPDATE ON compactory.leases TO {role};"
    return LockClaim(connection, connector, f"{role} may not write the lease: {grants}")
