"""A connection for a sink's transactions: checked, with time-outs that end what takes too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row

from compactory.errors import ConfigError
from compactory_connectors.database.session import refuse_pooling
from compactory_connectors.database.watched_connection import WatchedConnection, connect
from compactory_sql import query

__all__ = ["open_sink"]

_LOCK_SHARE = 0.5  # of the limit, for a lock: what is waited for is another process's transaction


def open_sink(conninfo: Mapping[str, Any], sink: str, timeout: float = 60.0) -> WatchedConnection:
    """A connection in autocommit to a database with the sink's tables.

    ``timeout`` is the seconds that a statement, or a pause between two of a transaction, may take.
    Raises psycopg.Error, and ConfigError for a standby, a pooler, missing migrations or rights.
    """
    connection = connect({**conninfo, "application_name": f"compactory-sink {sink}"[:63]})
    try:
        refuse_pooling(connection)
        limits = {"limit": f"{timeout * 1000:.0f}ms", "lock": f"{timeout * 1000 * _LOCK_SHARE:.0f}ms"}
        connection.execute(query("sink/settings"), limits)
        row = connection.cursor(row_factory=dict_row).execute(query("sink/server")).fetchone()
        assert row is not None
        if row["standby"]:
            raise ConfigError("a sink needs a read-write server, and this one is a standby: name the primary")
        if not row["installed"]:
            raise ConfigError("the sink's tables are not installed in this database: compactory sql install")
        lacking = connection.execute(query("sink/rights")).fetchall()
        if lacking:
            raise ConfigError(
                f"{role} may not keep a sink's offsets: GRANT {needed} TO {role}; compactory sink roles grants it"
                for role, needed in lacking
            )
    except (psycopg.Error, ConfigError):
        connection.close()
        raise
    connection.prepare_threshold = 2
    return connection
