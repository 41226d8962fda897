"""Ids of handled messages, stored in the transaction that handles them.

A message that Kafka has twice, with the same id, then has its effect once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import scalar_row

from compactory.errors import ConfigError
from compactory_sql import query

from .caller import driver

__all__ = ["KEEP", "MESSAGE_ID", "note_handled"]

MESSAGE_ID: Final = "compactory-message-id"
"""The header of a message's id."""

KEEP: Final = timedelta(days=7)
"""How long ids are kept."""


def note_handled(conn: Any, reader: str, topic: str, ids: Iterable[str]) -> set[str]:
    """Store message ids of a topic as handled by a reader; return the ids that were not stored before.

    ``conn`` is a synchronous connection of psycopg, or a session or connection of SQLAlchemy on psycopg. The
    transaction is never committed here. A second reader of the same name waits until it ends. Ids are kept for seven
    days. Raises ConfigError where the database lacks the table or its role the right, WriteRefused
    in autocommit without a transaction, psycopg.Error.
    """
    inner = driver(conn, "note_handled", "id")
    parameters = {"reader": reader, "topic": topic, "ids": list(ids), "keep": KEEP}
    place = f"database {inner.info.dbname!r}"
    try:
        return set(inner.cursor(row_factory=scalar_row).execute(query("database/note_handled"), parameters).fetchall())
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable) as error:
        raise ConfigError(f"{place} has no table of handled messages: `compactory sql install` adds it") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"role {inner.info.user!r} may not note handled messages in {place}:"
            " `compactory sql roles --for sink` grants it"
        ) from error
