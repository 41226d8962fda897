"""Tables, views and queries as Postgres's catalogue describes them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import class_row, dict_row, tuple_row

from compactory.errors import ConfigError
from compactory_connectors.postgres.postgres_errors import refusal_text
from compactory_sql import query

from ..config.selection import Relation, RelationKind

__all__ = ["Column", "Index", "Rights", "Table", "describe", "describe_query", "find_relations", "read_rights"]

_REFUSAL = (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY, DiagnosticField.MESSAGE_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and its type. A domain shows as its base type, as in a result's row description."""

    name: str
    type: str
    """Name in ``pg_type``, such as ``int8``."""
    type_schema: str = "pg_catalog"
    type_kind: str = "b"
    """``pg_type.typtype``: b base, c composite, e enum, m multirange, p pseudo, r range."""
    typmod: int = -1
    has_parts: bool = False
    """Its type is an array, a composite or hstore."""
    not_null: bool = False
    """The column's own NOT NULL, or its domain's."""
    declared: str = ""
    """The type as SQL writes it, domains as such: ``character varying(20)``."""
    numbers_itself: bool = False
    """An identity column, or one whose default is ``nextval``."""


@dataclass(frozen=True, slots=True)
class Index:
    """A valid index on plain columns.

    ``predicate``: the condition of its rows, as the server spells it; None: it covers every row.
    """

    columns: tuple[str, ...]
    unique: bool
    predicate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Relation):
    """A relation with its columns in order, without ``updated_xid``, the stamp of an adopted table.

    A query is a table without a name.
    """

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.name else "query"

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def digest(self) -> str:
        """Return a digest of names, types and NOT NULL of the columns: the ground of a session's plan of a query."""
        text = "\n".join(f"{column.name} {column.declared} {column.not_null}" for column in self.columns)
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def find_relations(connection: Connection[Any]) -> list[Relation]:
    """Return everything that could be polled, system schemas and our own left out, in the order of the names."""
    rows = connection.cursor(row_factory=dict_row).execute(query("catalog/relations")).fetchall()
    columns: list[dict[str, Any]] = [{**row, "kind": RelationKind(row["kind"])} for row in rows]
    return [Relation(**row) for row in columns]


def describe(connection: Connection[Any], relation: Relation) -> Table | None:
    """Return the relation with its columns and indexes; None if it has just been dropped."""
    cursor = connection.cursor(row_factory=tuple_row)
    row = cursor.execute(query("catalog/table"), {"oid": relation.oid}).fetchone()
    if row is None:
        return None
    primary_key, indexes = row
    column_cursor = connection.cursor(row_factory=class_row(Column))
    columns = column_cursor.execute(query("catalog/columns"), {"oid": relation.oid}).fetchall()
    return Table(
        schema=relation.schema,
        name=relation.name,
        oid=relation.oid,
        kind=relation.kind,
        columns=tuple(column for column in columns if (column.name, column.type) != ("updated_xid", "xid8")),
        primary_key=tuple(primary_key),
        indexes=tuple(Index(tuple(names), unique, predicate) for names, unique, predicate in indexes),
    )


def describe_query(connection: Connection[Any], text: str, *, masked: bool = False) -> Table:
    """Return the result of a query, as the server describes it without running it.

    A column that comes straight from a table's NOT NULL column can't be NULL, as in JDBC's metadata. Raises ConfigError
    for a query that the server refuses, that has parameters, or more statements than one; with ``masked`` no message
    repeats a piece of the query.
    """
    pgconn = connection.pgconn
    with connection.transaction():  # an error must not outlive this
        prepared = pgconn.prepare(b"", text.encode())
        if prepared.status != ExecStatus.COMMAND_OK:
            raise ConfigError(f"query: {_refusal(prepared, masked=masked)}")
        result = pgconn.describe_prepared(b"")
        if result.nparams:
            raise ConfigError("query: has parameters ($1 …); write the values, or placeholders ${…}, into it")
        if not result.nfields:
            raise ConfigError("query: gives no columns; write a SELECT")
        columns = tuple(_result_column(connection, result, number) for number in range(result.nfields))
    repeated = sorted(name for name, count in Counter(column.name for column in columns).items() if count > 1)
    if repeated:
        raise ConfigError(f"query: gives several columns named {name}; rename them with AS" for name in repeated)
    return Table(schema="", name="", oid=0, kind=RelationKind.QUERY, columns=columns, primary_key=())


def _result_column(connection: Connection[Any], result: PGresult, number: int) -> Column:
    typmod = result.fmod(number)
    described = {"type": result.ftype(number), "typmod": typmod}
    described |= {"table": result.ftable(number), "number": result.ftablecol(number)}
    row = connection.cursor(row_factory=dict_row).execute(query("catalog/result_column"), described).fetchone()
    assert row is not None
    return Column(name=(result.fname(number) or b"").decode(), typmod=typmod, **row)


def _refusal(result: PGresult, *, masked: bool) -> str:
    fields = {field: (result.error_field(field) or b"").decode(errors="replace") for field in _REFUSAL}
    sqlstate, message, hint = fields.values()
    shown = refusal_text(sqlstate, message, masked=masked)
    return shown if masked or not hint else f"{shown}; hint: {hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The session's rights on one table. Names are quoted where SQL needs it."""

    role: str
    schema: str
    table: str
    uses_schema: bool
    reads_table: bool
    sees_some_rows: bool
    """Row-level security applies."""
    leaves_out: bool
    """The options of connection.url have the rows left out that a policy hides."""
    reads_log: bool
    """The log of hard-deleted rows, which an adopted table has."""

    def lacking(self) -> Iterator[str]:
        """Yield each right that is missing to poll the table, with the statement that grants it."""
        if not self.uses_schema:
            yield self._problem("use its schema", f"USAGE ON SCHEMA {self.schema}")
        if not self.reads_table:
            yield self._problem("read it", f"SELECT ON {self.table}")
        if self.sees_some_rows and not self.leaves_out:
            yield (
                f"table {self.table}: row-level security may hide rows from {self.role}: ALTER ROLE {self.role}"
                " BYPASSRLS; or leave those rows out with options=-c row_security=on in connection.url"
            )

    def lacking_log(self) -> Iterator[str]:
        """Yield the rights that are missing to poll an adopted table, apart from those of :meth:`lacking`."""
        if not self.reads_log:
            yield self._problem(
                "read the log of its deleted rows", "USAGE ON SCHEMA compactory", "SELECT ON compactory.deleted_rows"
            )

    def narrowed(self) -> Iterator[str]:
        """Yield a warning where policies decide which rows are published."""
        if self.sees_some_rows and self.leaves_out:
            yield (
                f"table {self.table}: row-level security applies to {self.role}: rows that a policy hides are left out,"
                " and one that it shows later is sent only when it changes"
            )

    def _problem(self, doing: str, *missing: str) -> str:
        remedy = " ".join(f"GRANT {right} TO {self.role};" for right in missing)
        return f"table {self.table}: {self.role} may not {doing}: {remedy}"


def read_rights(connection: Connection[Any], oid: int) -> Rights:
    """Return the role's rights on a table. Raises psycopg.Error."""
    with connection.cursor(row_factory=class_row(Rights)) as cursor:
        row = cursor.execute(query("roles/source"), {"oid": oid}).fetchone()
    assert row is not None  # the table was found a moment ago
    return row
