"""Reads the facts about a table that adoption needs from Postgres' catalogue."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, LiteralString, TypeVar, cast

from psycopg import sql
from psycopg.rows import class_row, dict_row, scalar_row

from compactory.errors import ConfigError
from compactory_sql import query
from compactory_sql.adoption import XID_COLUMN
from compactory_sql.naming import fold, split_name
from compactory_sql.table import Column, Index, Member, Table, Trigger
from compactory_sql.triggers import TRIGGER_PREFIX

from ..postgres.session import Connection

__all__ = ["adopted_tables", "read_table", "resolve", "verbatim"]

_Fact = TypeVar("_Fact")


def resolve(connection: Connection, name: str) -> int:
    """Return the oid of a table by its name: as written, else folded to lower case where it is not in double quotes.

    Raises ConfigError with the nearest names.
    """
    parts = split_name(name)
    if parts is None or len(parts) > 2:
        raise ConfigError(f"{name!r} is not a table name: give table or schema.table, in double quotes as in SQL")
    folded = [part if quoted else fold(part) for part, quoted in parts]
    for spelling in ([part for part, _ in parts], folded, [name]):
        schema = spelling[0] if len(spelling) == 2 else None
        with connection.cursor(row_factory=scalar_row) as cursor:
            oid = cursor.execute(query("adoption/resolve"), {"schema": schema, "name": spelling[-1]}).fetchone()
        if oid is not None:
            return int(oid)
    raise ConfigError(f"there is no table {name}" + _nearest(connection, parts[-1][0]))


def read_table(connection: Connection, oid: int) -> Table:
    """Return all facts about a table that adoption is about. Raises ConfigError when no relation has this oid."""
    relation = _relation(connection, oid)
    members = _facts(connection, Member, "adoption/members", oid=oid)
    oids = [member.oid for member in members]
    columns = {column.name: column for column in _facts(connection, Column, "adoption/columns", oid=oid)}
    triggers = _facts(connection, Trigger, "adoption/triggers", oids=oids, prefix=TRIGGER_PREFIX)
    with connection.cursor(row_factory=dict_row) as cursor:
        functions = {row["name"]: row["body"] for row in cursor.execute(query("adoption/functions"))}
        later_triggers = [
            row["name"]
            for row in cursor.execute(query("adoption/later_triggers"), {"oids": oids, "prefix": TRIGGER_PREFIX})
        ]
    return Table(
        members=tuple(members),
        columns=columns,
        triggers=tuple(triggers),
        indexes=tuple(_indexes(connection, oids)),
        functions=functions,
        obstacles=tuple(_obstacles(relation, members)),
        later_triggers=tuple(later_triggers),
        foreign_xids=_foreign_xids(connection, members[0], columns),
    )


def adopted_tables(connection: Connection) -> list[int]:
    """Return the oids of all tables that have triggers of ours."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(query("adoption/tables"), {"prefix": TRIGGER_PREFIX}).fetchall()


def _facts(connection: Connection, fact: type[_Fact], name: str, **parameters: Any) -> list[_Fact]:
    with connection.cursor(row_factory=class_row(fact)) as cursor:
        return cursor.execute(query(name), parameters).fetchall()


def _relation(connection: Connection, oid: int) -> dict[str, Any]:
    with connection.cursor(row_factory=dict_row) as cursor:
        relation = cursor.execute(query("adoption/relation"), {"oid": oid}).fetchone()
    if relation is None:
        raise ConfigError(f"there is no table with oid {oid}")
    return relation


def _indexes(connection: Connection, oids: list[int]) -> Iterator[Index]:
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute(query("adoption/indexes"), {"oids": oids}):
            yield Index(**{**row, "columns": tuple(row["columns"])})


def _obstacles(relation: Mapping[str, Any], members: list[Member]) -> Iterator[str]:
    name = relation["sql"]
    if relation["kind"] not in {"r", "p"}:
        yield f"{name} is not a table (views, foreign tables and materialized views have no row triggers that see all)"
    if relation["persistence"] != "p":
        yield f"{name} is temporary or unlogged: a crash empties it unseen; ALTER TABLE {name} SET LOGGED;"
    if relation["root"] is not None:
        yield f"{name} is a partition: adopt {relation['root']}, which its rows belong to"
    if relation["inherits"]:
        yield f"{name} takes part in table inheritance, where statements reach rows past its triggers: use partitions"
    if relation["schema"] in {"pg_catalog", "information_schema", "compactory"}:
        yield f"{name} belongs to the system"
    for member in members[1:]:
        if member.kind == "f":
            yield f"{member.sql} is a foreign table: its rows change past our triggers; detach it from {name}"


def _foreign_xids(connection: Connection, root: Member, columns: Mapping[str, Column]) -> bool:
    stamp = columns.get(XID_COLUMN)
    if stamp is None or stamp.type != "xid8":
        return False
    statement = sql.SQL(query("adoption/foreign_xids")).format(table=verbatim(root.sql))
    with connection.cursor(row_factory=scalar_row) as cursor:
        return bool(cursor.execute(statement).fetchone())


def verbatim(name: str) -> sql.SQL:
    """Return a name that the server quoted itself."""
    literal: LiteralString = cast("LiteralString", name)  # type: ignore[redundant-cast]  # mypy takes it for str
    return sql.SQL(literal)


def _nearest(connection: Connection, name: str) -> str:
    with connection.cursor(row_factory=dict_row) as cursor:
        tables = {row["name"]: row["spelled"] for row in cursor.execute(query("adoption/names"))}
    near = [tables[match] for match in difflib.get_close_matches(name, tables, n=3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
