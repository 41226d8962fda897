"""Removes logged deletions that no source needs any more.

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

from ..offsets.offset import SourceOffset
from ..offsets.stored_offsets import StoredOffset
from ..postgres.server import Server, statement

__all__ = ["Pruned", "prune"]

_ROWS = 10_000
"""Rows of one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Logged deletions of a table: how many were removed, or with ``kept`` why none was."""

    table: str
    removed: int = 0
    kept: str | None = None


def prune(
    connection: psycopg.Connection[Any], offsets: Iterable[StoredOffset], age: timedelta, *, dry_run: bool = False
) -> list[Pruned]:
    """Remove logged deletions older than ``age`` that every connector of ``offsets`` has behind it, table by table.

    With ``dry_run`` they are counted only. May be cut off and run again. Needs DELETE on ``compactory.deleted_rows``.
    Raises psycopg.Error.
    """
    server = Server(connection)
    stored: dict[str, list[StoredOffset]] = {}
    for each in offsets:
        stored.setdefault(each.table, []).append(each)
    found = connection.execute(query("source/logged_tables")).fetchall()
    return [_prune(server, str(name), int(oid), stored, age, dry_run=dry_run) for oid, name in found]


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
        return Pruned(table=table, kept=floor)
    parts = {"oid": sql.Literal(oid), "floor": sql.Literal(str(floor)), "age": sql.Literal(age)}
    if dry_run:
        return Pruned(table=table, removed=int(server.scalar(statement("source/prunable", **parts))))
    removed = 0
    while count := int(server.scalar(statement("source/prune", **parts, limit=sql.Literal(_ROWS)))):
        removed += count
    return Pruned(table=table, removed=removed)


def _floor(server: Server, oid: int, stored: Iterable[StoredOffset]) -> int | str:
    """The transaction id below which every connector has all deletions, or why there is none."""
    floors: list[int] = []
    for each in stored:
        if each.value is None:
            continue
        if each.offset is None:
            return f"the offset of connector {each.connector} can't be read"
        if not each.offset.identity.same_history(server.identity(oid)):
            continue  # it will compare the whole table, and needs no log
        covered = _covered(each.offset)
        if covered is None:
            return f"connector {each.connector} has not finished its load"
        floors.append(covered)
    return min(floors) if floors else "no connector of this Kafka cluster polls it"


def _covered(offset: SourceOffset) -> int | None:
    """The floor of what a source would go on from, after a crash as well."""
    if offset.seen_snapshot is None:
        return None
    return min(known.snapshot.xmin for known in (offset.seen_snapshot, offset.durable or offset.seen_snapshot))
