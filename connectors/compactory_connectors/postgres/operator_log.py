"""The operator log: a line for each act of an operator, written in the transaction of the act and kept for 90 days."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from compactory_sql import query

if TYPE_CHECKING:
    import psycopg

__all__ = ["LogLine", "log_act", "operator_log", "person"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """An act of an operator.

    ``who``: the person, and in brackets the role with its database. ``part``: jobs, outbox, sink or processors.
    ``object`` has ids, fields of a filter, or a name; ``count`` is how many jobs, messages, records or events the act
    has changed. An act in several transactions has a line for each.
    """

    at: datetime
    who: str
    part: str
    action: str
    object: Mapping[str, Any]
    count: int


def operator_log(connection: psycopg.Connection[Any], part: str | None = None, limit: int = 100) -> list[LogLine]:
    """Return the newest lines, of one part or of all. Raises psycopg.Error."""
    from psycopg.rows import class_row  # processors have no Postgres

    cursor = connection.cursor(row_factory=class_row(LogLine))
    return cursor.execute(query("operators/log"), {"part": part, "limit": limit}).fetchall()


def log_act(
    connection: psycopg.Connection[Any],
    part: str,
    action: str,
    target: Mapping[str, Any],
    count: int,
    by: str | None,
) -> None:
    """Write a line in the open transaction, unless the act changed nothing. ``by`` None: the user of this process.

    Fields of ``target`` that are None are left out. Raises psycopg.Error.
    """
    if count:
        fields = {name: value for name, value in target.items() if value is not None}
        line = {"part": part, "action": action, "object": orjson.dumps(fields).decode(), "count": count}
        connection.execute(query("operators/log_act"), line | {"by": person(by)})


def person(by: str | None) -> str:
    """Return the name of whoever acts: ``by``, else the user of this process."""
    try:
        return by or getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
