"""A connector as Kafka and Postgres know it: for people who can't reach its process.

Neither says what the process does now: the offsets say what was published when, the lease who would publish.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from compactory.errors import CompactoryError, LeaseLost
from compactory.kafka.client import Kafka
from compactory_sql import LEASE_LOCK_CLASS, query

from ..config.connector import ConnectorConfig
from ..offsets.stored_offsets import StoredOffset, read_offsets
from ..offsets.target_state import TargetState, read_target_state, write_target_state
from ..postgres.server import connected, connector_lock
from ..runtime.claim import TTL

__all__ = ["Overview", "running_sources", "sight", "target_state_from_outside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What Kafka and Postgres say of one connector.

    ``holder``: who has the lease, in words. ``renewed``: True if the holder renewed it in time, None for a lock, which
    ends with its holder's connection. ``running``: sessions in Postgres of sources of this connector. ``unseen``: why
    Postgres could not be asked.
    """

    connector: str
    target_state: TargetState
    offsets: tuple[StoredOffset, ...]
    holder: str | None = None
    renewed: bool | None = None
    running: tuple[str, ...] = ()
    unseen: str | None = None

    @property
    def publishes(self) -> bool:
        """Return True if a source holds the lease now. A session alone may be a standby, or about to end."""
        return self.holder is not None and self.renewed is not False


def sight(connector: ConnectorConfig, kafka: Kafka) -> Overview:
    """Ask Kafka, and Postgres where it answers. Raises Unreachable and ConfigError for Kafka."""
    target_state = read_target_state(kafka, connector.name)
    offsets = tuple(stored for stored in read_offsets(kafka) if stored.connector == connector.name)
    seen: dict[str, Any]
    try:
        with connected(connector.connection) as server:
            holder, renewed = _holder(server.connection, connector.name)
            seen = {"running": tuple(server.running_sources(connector.name)), "holder": holder, "renewed": renewed}
    except CompactoryError as error:
        seen = {"unseen": str(error)}
    return Overview(connector=connector.name, target_state=target_state, offsets=offsets, **seen)


def running_sources(connector: ConnectorConfig) -> list[str]:
    """Which sources of the connector run, as people are told. Raises Unreachable, ConfigError."""
    with connected(connector.connection) as server:
        return server.running_sources(connector.name)


def target_state_from_outside(connector: ConnectorConfig, kafka: Kafka, target_state: TargetState) -> None:
    """Store a target for the next process, and for one that is paused, which looks now and then.

    Raises LeaseLost where a source publishes: it would be fenced and hear nothing of it; and Unreachable, ConfigError.
    """
    if running := running_sources(connector):
        raise LeaseLost(
            f"a source of {connector.name!r} is running: {'; '.join(running)}; it takes orders over HTTP where it was"
            " started with --listen (--url says where); else stop it first"
        )
    write_target_state(connector, kafka, target_state)


def _holder(connection: psycopg.Connection, connector: str) -> tuple[str | None, bool | None]:
    """The lease's holder in words, and whether it was renewed in time; None for a lock, which has no time."""
    given: dict[str, Any] = {"connector": connector, "holder": None, "ttl": timedelta(seconds=TTL)}
    given |= {"class": LEASE_LOCK_CLASS, "key": connector_lock(connector)}
    cursor = connection.cursor(row_factory=dict_row)
    try:
        row = cursor.execute(query("lease/holder"), given).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege):
        row = None
    if row is not None:
        return row["words"], not row["expired"]
    locked = cursor.execute(query("lease/locked_by"), given).fetchone()
    return (locked["words"] if locked is not None else None), None
