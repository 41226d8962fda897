"""Connections of outbox, jobs and sink, with checks that their part of the schema is installed and may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from compactory.errors import ConfigError
from compactory_sql import query

from .session import refuse_pooling
from .watched_connection import WatchedConnection, connect

__all__ = ["Part", "open_part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the schema: the prefix of its queries, and words for messages about it."""

    name: str
    needs: str
    """The begin of "… a read-write server"."""
    installed: str
    """The begin of "… not installed"."""
    may: str
    """The end of "role r may not …"."""


def open_part(
    conninfo: Mapping[str, Any], part: Part, purpose: str, settings: Mapping[str, Any] | None = None
) -> tuple[WatchedConnection, Mapping[str, Any]]:
    """Return a connection in autocommit, named ``compactory-PART PURPOSE``, and the row of the query ``PART/server``.

    ``settings`` are parameters of ``PART/settings``. Raises psycopg.Error, and ConfigError for a standby, a pooler,
    missing migrations or rights.
    """
    connection = connect({**conninfo, "application_name": session_name(part, purpose)})
    user = connection.info.user
    try:
        refuse_pooling(connection)
        connection.execute(query(f"{part.name}/settings"), settings)
        row = connection.cursor(row_factory=dict_row).execute(query(f"{part.name}/server")).fetchone()
        assert row is not None
        if row["standby"]:
            raise ConfigError(f"{part.needs} a read-write server, and this one is a standby: name the primary")
        if not row["installed"]:
            missing = f"{part.installed} not installed in this database, or by an older version"
            raise ConfigError(f"{missing}: compactory sql install")
        lacking = connection.execute(query(f"{part.name}/rights")).fetchall()
        if lacking:
            raise ConfigError(
                f"{role} may not {part.may}: GRANT {needed} TO {role}; compactory sql roles --for {part.name} grants it"
                for role, needed in lacking
            )
    except psycopg.errors.InsufficientPrivilege as error:
        connection.close()
        raise ConfigError(
            f"role {user!r} may not {part.may}: {error.diag.message_primary};"
            f" compactory sql roles --for {part.name} makes a role that may, to be granted to it"
        ) from error
    except (psycopg.Error, ConfigError):
        connection.close()
        raise
    connection.prepare_threshold = 1
    return connection, row


def session_name(part: Part, purpose: str) -> str:
    """Return the name that Postgres shows of such a connection, as long as it may be."""
    return f"compactory-{part.name} {purpose}"[:63]
