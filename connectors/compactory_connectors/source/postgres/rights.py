"""The rights of a source's role, looked up before it polls: a missing one is named, with its grant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row

from compactory_sql import query

__all__ = ["Rights", "read_rights"]


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
        """Rights that are missing to poll the table, each with the statement that grants it."""
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
        """Rights that are missing beyond those where the table is adopted."""
        if not self.reads_log:
            yield self._problem(
                "read the log of its deleted rows", "USAGE ON SCHEMA compactory", "SELECT ON compactory.deleted_rows"
            )

    def narrowed(self) -> Iterator[str]:
        """A warning where policies decide which rows are published."""
        if self.sees_some_rows and self.leaves_out:
            yield (
                f"table {self.table}: row-level security applies to {self.role}: rows that a policy hides are left out,"
                " and one that it shows later is sent only when it changes"
            )

    def _problem(self, doing: str, *missing: str) -> str:
        remedy = " ".join(f"GRANT {right} TO {self.role};" for right in missing)
        return f"table {self.table}: {self.role} may not {doing}: {remedy}"


def read_rights(connection: Connection[Any], oid: int) -> Rights:
    """Look the rights up. Raises psycopg.Error."""
    with connection.cursor(row_factory=class_row(Rights)) as cursor:
        row = cursor.execute(query("roles/source"), {"oid": oid}).fetchone()
    assert row is not None  # the table was found a moment ago
    return row
