"""The state of a connector as Kafka and Postgres know it, for people who can't reach its process.

The offsets tell what was published when, the lease which source may publish. Neither tells what a process does now.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta

import psycopg
from psycopg.rows import dict_row

from compactory.errors import CompactoryError, LeaseLost
from compactory.kafka.client import Kafka
from compactory_sql import LEASE_LOCK_CLASS, query

from ..config.connector import ConnectorConfig
from ..offsets.stored_offsets import (
    StoredOffset,
    Target,
    TargetState,
    read_offsets,
    read_target_state,
    write_target_state,
)
from ..postgres.server import connected, connector_lock
from ..runtime.claim import TTL

__all__ = ["Overview", "read_overview", "store_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of one connector in Kafka and Postgres.

    ``holder`` describes the source that has the lease. ``renewed``: True if it renewed the lease in time, None for a
    lock, which ends with its connection. ``sessions``: connections of sources of this connector to Postgres.
    ``postgres_error``: the reason why Postgres could not be asked.
    """

    connector: str
    target_state: TargetState
    offsets: tuple[StoredOffset, ...]
    holder: str | None = None
    renewed: bool | None = None
    sessions: tuple[str, ...] = ()
    postgres_error: str | None = None

    @property
    def publishes(self) -> bool:
        """Return True if a source holds the lease now. A session alone may be a standby, or about to end."""
        return self.holder is not None and self.renewed is not False


def read_overview(connector: ConnectorConfig, kafka: Kafka) -> Overview:
    """Ask Kafka, and Postgres if it answers. Raises Unreachable and ConfigError for Kafka."""
    overview = Overview(
        connector=connector.name,
        target_state=read_target_state(kafka, connector.name),
        offsets=tuple(stored for stored in read_offsets(kafka) if stored.connector == connector.name),
    )
    try:
        with connected(connector.connection) as server:
            holder, renewed = _lease_holder(server.connection, connector.name)
            sessions = tuple(server.running_sources(connector.name))
            return replace(overview, holder=holder, renewed=renewed, sessions=sessions)
    except CompactoryError as error:
        return replace(overview, postgres_error=str(error))


def store_target(connector: ConnectorConfig, kafka: Kafka, target: Target) -> None:
    """Store a target for the next process of the connector, and for one that is paused, which reads it now and then.

    Raises LeaseLost if a source publishes: it would be fenced without knowing why. Raises Unreachable, ConfigError.
    """
    with connected(connector.connection) as server:
        running = server.running_sources(connector.name)
    if running:
        raise LeaseLost(
            f"a source of {connector.name!r} is running: {'; '.join(running)}; it takes orders over HTTP where it was"
            " started with --listen (--url says where); else stop it first"
        )
    write_target_state(connector, kafka, TargetState(target=target, since=time.time()))


def _lease_holder(connection: psycopg.Connection, connector: str) -> tuple[str | None, bool | None]:
    """Return a description of the lease's holder, and True if it was renewed in time; None for a lock."""
    parameters = {
        "connector": connector,
        "holder": None,
        "ttl": timedelta(seconds=TTL),
        "class": LEASE_LOCK_CLASS,
        "key": connector_lock(connector),
    }
    cursor = connection.cursor(row_factory=dict_row)
    try:
        row = cursor.execute(query("lease/holder"), parameters).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege):
        row = None
    if row is not None:
        return row["words"], not row["expired"]
    locked = cursor.execute(query("lease/locked_by"), parameters).fetchone()
    return (locked["words"] if locked is not None else None), None
