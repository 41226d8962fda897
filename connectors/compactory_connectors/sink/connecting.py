"""A connection for a sink's transactions: checked, with time-outs that end what takes too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactory_connectors.database.installed import Part, open_part
from compactory_connectors.database.watched_connection import WatchedConnection

__all__ = ["open_sink"]

_SINK = Part(name="sink", needs="a sink needs", installed="the sink's tables are", may="keep a sink's offsets")
_LOCK_SHARE = 0.5  # of the limit, for a lock: what is waited for is another process's transaction


def open_sink(conninfo: Mapping[str, Any], sink: str, timeout: float = 60.0) -> WatchedConnection:
    """A connection in autocommit to a database with the sink's tables; see `open_part`.

    ``timeout`` is the seconds that a statement, or a pause between two of a transaction, may take.
    """
    limits = {"limit": f"{timeout * 1000:.0f}ms", "lock": f"{timeout * 1000 * _LOCK_SHARE:.0f}ms"}
    connection, _ = open_part(conninfo, _SINK, sink, limits)
    connection.prepare_threshold = 2
    return connection
