"""A table that files are loaded into: its key, the columns that a load may fill, reasons to refuse it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row, dict_row

from compactory.errors import ConfigError
from compactory_connectors.postgres.jdbc_url import Connection as Place
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.watched_connection import connect
from compactory_connectors.schema import Inspection, judge
from compactory_connectors.schema.catalogue import read_table, resolve
from compactory_sql import query
from compactory_sql.adoption import XID_COLUMN
from compactory_sql.naming import split_name
from compactory_sql.table import Table

from ..target import TargetColumn

__all__ = ["LoadedColumn", "LoadedTable", "find_table", "look_at"]

_ACTIVE_ROWS = ("(%s IS NOT FALSE)",)
_ACTIVE_WHERE_NOT_NULL = (*_ACTIVE_ROWS, "%s", "(%s IS TRUE)", "(%s = true)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedColumn:
    """A column. ``exact``: values that Postgres calls equal are the same bytes."""

    name: str
    type: str
    not_null: bool
    has_default: bool
    made_by_server: bool
    identity: bool
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """A table as a load knows it. ``sql`` is the quoted name with the schema, ``label`` its name for people.

    ``active`` is the column that soft deletion sets false; ``newest`` the one by which the newest of a key's inactive
    rows is told. ``unique``: the server keeps two active rows from having one key.
    """

    oid: int
    sql: str
    columns: tuple[LoadedColumn, ...]
    key: tuple[str, ...]
    active: str | None
    newest: str
    unique: bool
    stamped: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return f"table {self.sql}"

    @property
    def targets(self) -> list[TargetColumn]:
        return [
            TargetColumn(name=column.name, type=column.type, nullable=not column.not_null)
            for column in self.columns
            if column.name in self.key or not (column.made_by_server or column.identity or column.name in self.stamped)
        ]

    def column(self, name: str) -> LoadedColumn:
        """The column of this name, which has to be there."""
        return next(column for column in self.columns if column.name == name)

    def required(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that a new row needs and that a load with these columns lacks."""
        filled = {*columns, self.active, *self.stamped}
        return [
            c.name for c in self.columns if c.not_null and not (c.has_default or c.made_by_server or c.name in filled)
        ]


def find_table(place: Place, name: str, key: Sequence[str] | None, active: str | None) -> LoadedTable:
    """Look a table up without Spark. Raises ConfigError where it can't be loaded, Unreachable."""
    parameters = {"application_name": "compactory-load", **place.conninfo}
    with postgres_errors(place), closing(connect(parameters)) as connection:
        return look_at(connection, name, key, active)


def look_at(
    connection: Connection[Any], name: str, key: Sequence[str] | None = None, active: str | None = None
) -> LoadedTable:
    """Look the table up; ``key`` and ``active`` are for tables that are not adopted.

    Raises ConfigError with everything that keeps rows from being loaded into it, and psycopg.Error.
    """
    oid = resolve(connection, name)
    _refuse_ambiguous(connection, name, oid)
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query("load/table"), {"oid": oid}).fetchone()
    assert row is not None
    lacking = list(_rights(row))
    if lacking:
        raise ConfigError(lacking)
    facts = read_table(connection, oid)
    inspection = judge(facts)
    with connection.cursor(row_factory=class_row(LoadedColumn)) as cursor:
        columns = tuple(cursor.execute(query("load/columns"), {"oid": oid}))
    problems = list(_disagreements(inspection, key, active))
    keys, flag = _key(inspection, facts, key), inspection.adoption.active if inspection.adoption else active
    problems += _misnamed(row["sql"], columns, keys, flag)
    if problems:
        raise ConfigError(problems)
    return LoadedTable(
        oid=oid,
        sql=row["sql"],
        columns=columns,
        key=keys,
        active=flag,
        newest=inspection.adoption.id if inspection.adoption else columns[0].name,
        unique=_unique(facts, keys, flag),
        stamped=frozenset({inspection.adoption.timestamp, inspection.adoption.id, XID_COLUMN} - {*keys})
        if inspection.adoption
        else frozenset(),
    )


def _refuse_ambiguous(connection: Connection[Any], name: str, oid: int) -> None:
    """Raise ConfigError for a name without a schema that several tables have: the search path would choose one."""
    tables = [table for (table,) in connection.execute(query("load/namesakes"), {"oid": oid})]
    if len(tables) > 1 and len(split_name(name) or ()) == 1:
        raise ConfigError(f"table {name}: there are {' and '.join(tables)}: name the schema, too")


def _rights(row: dict[str, Any]) -> Iterator[str]:
    name, role = row["sql"], row["role"]
    if row["kind"] not in {"r", "p"}:
        yield f"{name} is no table: rows can be loaded into tables only"
    if not row["uses_schema"]:
        yield f"table {name}: {role} may not use its schema: GRANT USAGE ON SCHEMA {row['schema']} TO {role};"
    if not row["writes"]:
        yield f"table {name}: {role} may not load it: GRANT SELECT, INSERT, UPDATE ON {name} TO {role};"
    if row["sees_some_rows"]:
        yield (
            f"table {name}: row-level security hides rows from {role}, and a load would take their keys for new ones:"
            f" load as a role with BYPASSRLS"
        )
    if not row["installed"]:
        yield "schema compactory_staging, where rows are staged, is not there: run compactory sql install"
    elif not row["stages"]:
        remedy = f"run compactory sql roles {name} --role writer={role}, once more after sql install"
        yield f"{role} may not stage rows: {remedy}"


def _disagreements(inspection: Inspection, key: Sequence[str] | None, active: str | None) -> Iterator[str]:
    if inspection.adoption is None:
        return
    if not inspection.adopted:
        problems = "; ".join(inspection.problems)
        yield f"table {inspection.table} is not as it was adopted, run {inspection.remedy}: {problems}"
    if key is not None and {*key} != {*inspection.adoption.key}:
        yield (
            f"table {inspection.table}: its key is ({', '.join(inspection.adoption.key)}), as it was adopted, and the"
            f" load's is ({', '.join(key)})"
        )
    if active is not None and active != inspection.adoption.active:
        adopted = inspection.adoption.active
        yield f"table {inspection.table} was adopted with --active {adopted}, and the load says {active}"


def _key(inspection: Inspection, facts: Table, key: Sequence[str] | None) -> tuple[str, ...]:
    if inspection.adoption is not None:
        return inspection.adoption.key
    if key is not None:
        return tuple(key)
    unique = {tuple(i.columns) for i in facts.indexes_of(facts.root) if i.unique and i.valid and None not in i.columns}
    if len(unique) == 1:
        return tuple(name for name in unique.pop() if name is not None)
    raise ConfigError(
        f"table {inspection.table} is not adopted, and {len(unique) or 'no'} unique indexes of it could tell its key:"
        " name the columns of the key"
    )


def _misnamed(name: str, columns: Sequence[LoadedColumn], key: Sequence[str], active: str | None) -> Iterator[str]:
    existing = {column.name: column for column in columns}
    for name_of_column in (*key, *([active] if active is not None else [])):
        if name_of_column not in existing:
            yield f"table {name} has no column {name_of_column}; it has {', '.join(existing)}"
    if active in existing and existing[active].type != "boolean":
        yield f"table {name}: column {active} is {existing[active].type}, and soft deletion needs a boolean one"


def _unique(facts: Table, key: Sequence[str], active: str | None) -> bool:
    """Return True if an index of the whole table keeps its active rows unique by the key."""
    enough: set[str | None] = {None}
    if active is not None and active in facts.columns:
        column = facts.columns[active]
        enough |= {form % column.sql for form in (_ACTIVE_WHERE_NOT_NULL if column.not_null else _ACTIVE_ROWS)}
    return any(
        index.unique and index.valid and {*index.columns} <= {*key} and index.predicate in enough
        for index in facts.indexes_of(facts.root)
    )
