"""What Postgres's catalogue says of a table. The only module of the value half that asks a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql
from psycopg.rows import tuple_row

from compactory.errors import ConfigError
from compactory_sql import query

from .connector import ConnectorConfig, TableName
from .setting import nearest

__all__ = ["Column", "Table", "describe_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. A domain shows as its base type, as in a result's row description."""

    name: str
    type: str
    """Name in ``pg_type``, such as ``int8``."""
    type_schema: str = "pg_catalog"
    type_kind: str = "b"
    """``pg_type.typtype``: b base, c composite, e enum, m multirange, p pseudo, r range."""
    typmod: int = -1
    not_null: bool = False
    """The column's own NOT NULL, or its domain's."""
    declared: str = ""
    """The type as SQL writes it, domains as such: ``character varying(20)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table with its columns in order; ``updated_xid``, the adopted table's own stamp, is not among them."""

    schema: str
    name: str
    oid: int
    kind: str
    """``pg_class.relkind``: r table, p partitioned table, v view, m materialized view, f foreign table."""
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    stamped: bool
    """It has the column ``updated_xid xid8`` that adoption adds."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column | None:
        """The column called ``name``, or None."""
        return next((column for column in self.columns if column.name == name), None)


def describe_tables(connection: Connection[Any], config: ConnectorConfig) -> tuple[Table, ...]:
    """The tables of ``config``, in its order, fit to be polled.

    Raises ConfigError with every problem of every table: not found, not a table, a column that the connector names
    missing or of a wrong type, no primary key, a nullable column where ``validate.non.null`` forbids it.
    Raises psycopg.Error when the server can't answer.
    """
    tables: list[Table] = []
    problems: list[str] = []
    for name in config.tables:
        table = _describe(connection, name)
        if table is None:
            names = [row[0] for row in connection.cursor(row_factory=tuple_row).execute(query("catalog/names"))]
            where = f"database {config.connection.server} has no such table, or {_user(connection)} can't see it"
            problems.append(f"table.whitelist: {name}: {where}{nearest(str(name), names)}")
        else:
            tables.append(table)
            problems += [f"table {table}: {problem}" for problem in _unfit(table, config)]
    topics = [config.topic(table.name) for table in tables]
    problems += [
        f"table.whitelist: {table} and another table of that name would share the topic {topic}"
        for table, topic in zip(tables, topics, strict=True)
        if topics.count(topic) > 1
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(tables)


def _describe(connection: Connection[Any], name: TableName) -> Table | None:
    cursor = connection.cursor(row_factory=tuple_row)
    identifier = sql.Identifier(*filter(None, (name.schema, name.name))).as_string(connection)
    row = cursor.execute(query("catalog/table"), {"table": identifier}).fetchone()
    if row is None:
        return None
    oid, schema, table, kind, primary_key = row
    columns = [
        Column(
            name=column,
            type=kind_name,
            type_schema=kind_schema,
            type_kind=typtype,
            typmod=typmod,
            not_null=not_null,
            declared=declared,
        )
        for column, kind_name, kind_schema, typtype, typmod, not_null, declared in cursor.execute(
            query("catalog/columns"), {"oid": oid}
        )
    ]
    stamp = [column for column in columns if column.name == "updated_xid" and column.type == "xid8"]
    return Table(
        schema=schema,
        name=table,
        oid=oid,
        kind=kind,
        columns=tuple(column for column in columns if column not in stamp),
        primary_key=tuple(primary_key),
        stamped=bool(stamp),
    )


def _user(connection: Connection[Any]) -> str:
    return f"user {connection.info.user}"


def _unfit(table: Table, config: ConnectorConfig) -> Iterator[str]:
    if table.kind not in "rp":
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
        yield f"is {kinds.get(table.kind, 'not a table')}; only tables have row versions to poll by"
        return
    if not table.primary_key:
        yield "has no primary key; add one, or rows can't be told apart"
    required: list[tuple[str, str, tuple[str, ...]]] = [
        ("incrementing.column.name", config.incrementing_column, _INTEGERS)
    ]
    required += [("timestamp.column.name", column, _TIMESTAMPS) for column in config.timestamp_columns]
    for key, name, types in required:
        column = table.column(name)
        if column is None:
            yield _no_column(table, key, name)
        elif column.type not in types:
            yield f"{key}: column {name} is of type {column.declared}, expected {' or '.join(types)}"
        elif config.validate_non_null and not column.not_null:
            yield f"{key}: column {name} may be NULL; make it NOT NULL, or set validate.non.null=false"
    if config.soft_delete is not None:
        column = table.column(config.soft_delete.column)
        if column is None:
            yield _no_column(table, "compactory.soft.delete.column", config.soft_delete.column)
        elif column.type != "bool":
            yield f"compactory.soft.delete.column: column {column.name} is of type {column.declared}, expected boolean"


def _no_column(table: Table, key: str, name: str) -> str:
    return f"{key}: there is no column {name}{nearest(name, (column.name for column in table.columns))}"


_INTEGERS = ("int8", "int4", "int2", "numeric")
_TIMESTAMPS = ("timestamp", "timestamptz")
