"""Logged deletions that no source needs any more are removed.

A source needs those that its offset does not cover. The offsets of all connectors of a Kafka cluster are in its offsets
topic; connectors of other clusters are unknown here, hence the age below which nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from compactory_sql import query

from ..offsets.stored_offsets import StoredOffset
from ..postgres.server import Server, statement

__all__ = ["Pruned", "prune"]

_ROWS = 10_000
"""Rows of one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The number of logged deletions of a table that were removed, or in ``problem`` the reason why none was."""

    table: str
    removed: int = 0
    problem: str | None = None


def prune(
    connection: psycopg.Connection[Any], offsets: Iterable[StoredOffset], age: timedelta, *, dry_run: bool = False
) -> list[Pruned]:
    """Remove logged deletions older than ``age`` that every connector of ``offsets`` has published, table by table.

    With ``dry_run`` they are only counted. May be interrupted and run again. Needs DELETE on
    ``compactory.deleted_rows``. Raises psycopg.Error.
    """
    server = Server(connection)
    stored: dict[str, list[StoredOffset]] = {}
    for offset in offsets:
        stored.setdefault(offset.table, []).append(offset)
    tables = connection.execute(query("source/logged_tables")).fetchall()
    return [_prune(server, str(name), int(oid), stored, age, dry_run=dry_run) for oid, name in tables]


def _prune(
    server: Server,
    table: str,
    oid: int,
    stored: Mapping[str, list[StoredOffset]],
    age: timedelta,
    *,
    dry_run: bool,
) -> Pruned:
    floor = _floor(server, oid, stored.get(f"{server.database}.{table}", []))
    if isinstance(floor, str):
        return Pruned(table=table, problem=floor)
    parts = {"oid": sql.Literal(oid), "floor": sql.Literal(str(floor)), "age": sql.Literal(age)}
    if dry_run:
        return Pruned(table=table, removed=int(server.scalar(statement("source/prunable", **parts))))
    removed = 0
    while count := int(server.scalar(statement("source/prune", **parts, limit=sql.Literal(_ROWS)))):
        removed += count
    return Pruned(table=table, removed=removed)


def _floor(server: Server, oid: int, stored: Iterable[StoredOffset]) -> int | str:
    """Return the transaction id before which every connector has all deletions, or the reason why there is none."""
    floors: list[int] = []
    for item in stored:
        if item.value is None:
            continue
        if item.offset is None:
            return f"the offset of connector {item.connector} can't be read"
        if not item.offset.identity.same_history(server.identity(oid)):
            continue  # it will compare the whole table, and needs no log
        seen, durable = item.offset.seen_snapshot, item.offset.durable
        if seen is None:
            return f"connector {item.connector} has not finished its load"
        floors.append(min(snapshot.snapshot.xmin for snapshot in (seen, durable or seen)))  # durable: after a crash
    return min(floors) if floors else "no connector of this Kafka cluster polls it"
