"""The SQL statements of a table sink. Pure. Names are quoted."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import LiteralString, cast

from psycopg import sql

from compactory_connectors.connect.record.schema import Schema

from ..record import RecordRefused
from .target import Target, column_type

__all__ = ["add_columns", "create_staging", "create_table", "delete", "merge", "staging"]


def staging(target: Target, columns: tuple[str, ...]) -> str:
    """Return the name of the temporary table for rows of these columns: equal for equal table and columns."""
    source = repr((target.text, [target.columns[column] for column in columns]))
    return f"compactory_sink_{sha256(source.encode()).hexdigest()[:16]}"


def create_staging(name: str, target: Target, columns: tuple[str, ...]) -> sql.Composed:
    """Return the statement for a temporary table with these columns."""
    statement = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DELETE ROWS AS SELECT {} FROM {} WITH NO DATA")
    return statement.format(sql.Identifier(name), _names(columns), target.name)


def merge(mode: str, target: Target, columns: tuple[str, ...], key: tuple[str, ...]) -> sql.Composed:
    """Return the statement that inserts, upserts or updates from ``staged``. Raises RecordRefused."""
    updated = [sql.Identifier(column) for column in columns if column not in key]
    if mode == "update":
        if not updated:
            raise RecordRefused("has nothing to update beside its primary key")
        sets = sql.SQL(", ").join(sql.SQL("{0} = staged.{0}").format(column) for column in updated)
        return sql.SQL("UPDATE {} AS t SET {} FROM staged WHERE {}").format(target.name, sets, _same(key))
    inserted = tuple(column for column in columns if target.columns[column].generated != "stored")
    has_identity = any(target.columns[column].generated == "identity" for column in columns)
    overriding = sql.SQL("OVERRIDING SYSTEM VALUE " if has_identity else "")
    insert = sql.SQL("INSERT INTO {0} ({1}) {2}SELECT {1} FROM staged").format(
        target.name, _names(inserted), overriding
    )
    if mode == "insert":
        return insert
    if not updated:
        return insert + sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(_names(key))
    sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(column) for column in updated)
    return insert + sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(_names(key), sets)


def delete(target: Target, key: tuple[str, ...]) -> sql.Composed:
    """Return the statement that deletes the rows with staged keys."""
    return sql.SQL("DELETE FROM {} AS t USING staged WHERE {}").format(target.name, _same(key))


def create_table(name: sql.Identifier, columns: Mapping[str, Schema | None], primary: tuple[str, ...]) -> sql.Composed:
    """Return the statement for a table with these columns. Raises RecordRefused for records without a schema."""
    parts = [_definition(column, schema, not_null=column in primary) for column, schema in columns.items()]
    if primary:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(_names(primary)))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(name, sql.SQL(", ").join(parts))


def add_columns(target: Target, missing: Mapping[str, Schema | None]) -> sql.Composed:
    """Return the statement that adds columns. Raises RecordRefused for a field that is not optional."""
    parts = []
    for column, schema in missing.items():
        if schema is not None and not schema.optional:
            raise RecordRefused(f"table {target.text} can't get column {column}: the field is not optional")
        parts.append(sql.SQL("ADD COLUMN IF NOT EXISTS {}").format(_definition(column, schema, not_null=False)))
    return sql.SQL("ALTER TABLE {} {}").format(target.name, sql.SQL(", ").join(parts))


def _definition(column: str, schema: Schema | None, *, not_null: bool) -> sql.Composed:
    if schema is None:
        raise RecordRefused(f"has no schema, so the type of column {column} is unknown: create the column yourself")
    null = " NOT NULL" if not_null or not schema.optional else ""
    type_ = cast("LiteralString", column_type(schema) + null)  # type: ignore[redundant-cast]  # mypy takes it for str
    return sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(type_))


def _names(columns: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _same(key: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL("t.{0} = staged.{0}").format(sql.Identifier(column)) for column in key)
