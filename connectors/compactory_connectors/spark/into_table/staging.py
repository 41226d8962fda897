"""Rows of a load on their way into a table: staged beside it by Spark's tasks, each of them exactly once.

A load holds the advisory lock of the table's oid from the first statement to the last: one load of a table at a time.
It drops what killed loads of the same table have left. A DataFrame stages rows without the lock, which its commit
takes: its tables have the time in their names, and any load drops them a day later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import scalar_row
from pyspark.sql import DataFrame

from compactory.errors import CompactoryError, Unreachable
from compactory_sql import LOAD_LOCK_CLASS, query

from ..identifier import quoted
from ..record_batch import in_arrow
from ..target import REJECTED, Received
from .copying import RESULT, Copying, Done
from .load_sql import LoadSql, staging_table
from .loaded_table import LoadedTable

__all__ = ["RowRefused", "Staging", "workers_conninfo"]

_PARTS: Final = ("rows", "changes", "spared")
_LOCK_INTERVAL: Final = 0.5
_STRAY_TASKS: Final = "3s"
"""Time for attempts that do not count to end by themselves."""


def workers_conninfo(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Return libpq's parameters of the server that this connection has reached, password included."""
    info = connection.info
    parameters = {**info.get_parameters(), "host": info.host, "port": str(info.port), "password": info.password}
    left_out = {
        "application_name",
        "hostaddr",
        "target_session_attrs",
        "load_balance_hosts",
        "client_encoding",
    }
    return {name: value for name, value in parameters.items() if value and name not in left_out}


class RowRefused(CompactoryError):
    """Postgres can't read a value of a row, or a type of the table does not allow it."""


class Staging:
    """The staging tables of one load. Owned by one thread, as the connection is."""

    def __init__(
        self, connection: psycopg.Connection[Any], table: LoadedTable, connections: int, stem: str | None = None
    ) -> None:
        self._connection = connection
        self._connections = connections
        self._table = table
        self.stem = stem or f"load_{table.oid}_{token_hex(4)}"
        """The beginning of its tables' names."""
        self._locked = False

    def claim(self, wait: float) -> None:
        """Become the only load of this table, and drop what killed loads of the table have left.

        Raises Unreachable naming the other load where it goes on for longer than ``wait`` seconds.
        """
        until = time.monotonic() + wait
        while not self._try_lock(self._table.oid):
            if time.monotonic() >= until:
                holder = self._scalar("load/lock_holder", self._lock(self._table.oid)) or "one that has ended by now"
                raise Unreachable(
                    "Postgres", f"{self._table.label} is being loaded by {holder}; try again when it ended"
                )
            time.sleep(_LOCK_INTERVAL)
        self._locked = True
        self._drop_leftovers()

    def statements(self, columns: Sequence[str], part: str = "rows") -> LoadSql:
        staged, changes = self._name(part), self._name("changes")
        return LoadSql(table=self._table, columns=tuple(columns), staged=staged, changes=changes)

    def stage(self, rows: DataFrame, statements: LoadSql) -> Received:
        """Copy the rows into their table, each once however often tasks are tried, but those that :data:`REJECTED` says
        are not to be.

        Raises RowRefused, CompactoryError where Postgres refuses all of them.
        """
        self.create(statements)
        copying = replace(self.copying(statements), create="")
        columns = map(quoted, statements.columns)
        sent = rows.select(*columns, *(name for name in rows.columns if name == REJECTED))
        results = in_arrow(sent, copying, RESULT).collect()
        return self.received(statements, [Done(**row.asDict()) for row in results])

    def stage_keys(self, keys: DataFrame, part: str) -> str:
        """Copy keys into a table of their own and return its name."""
        statements = self.statements(self._table.key, part)
        self.stage(keys, statements)
        return statements.staged

    def close(self) -> None:
        if self._connection.closed or not self._locked:
            return
        self.forget()
        self._connection.execute(query("load/unlock"), self._lock(self._table.oid))
        self._locked = False

    def _name(self, part: str) -> str:
        return f"{self.stem}_{part}"

    def forget(self) -> None:
        """Drop the tables, so that other rows can be staged."""
        self._drop([self._name(part) for part in _PARTS])

    def create(self, statements: LoadSql) -> None:
        self._connection.execute(statements.render("stage"))

    def copying(self, statements: LoadSql) -> Copying:
        """Return what tasks call to copy into the table, which the first of them makes."""
        return Copying(
            conninfo=workers_conninfo(self._connection),
            staged=statements.staged,
            columns=statements.columns,
            connections=self._connections,
            create=statements.render("stage").as_string(self._connection),
        )

    def received(self, statements: LoadSql, results: Sequence[Done]) -> Received:
        """Stop all writes to the table, and return the numbers of rows of the attempts that Spark counts.

        Raises RowRefused, CompactoryError where Postgres refuses all of them.
        """
        refused = next((result.refused for result in results if result.refused is not None), None)
        if refused is not None:
            message = f"{self._table.label} refuses rows: {refused}"
            if "SQLSTATE 2" in refused:
                raise RowRefused(f"{message}; add a rule that rejects such rows")
            raise CompactoryError(message)
        counted = {result.xid: result.copied for result in results if result.copied}
        self._seal(statements, counted)
        return Received(rows=sum(counted.values()), rejected=sum(result.rejected for result in results))

    def _seal(self, statements: LoadSql, counted: Mapping[int, int]) -> None:
        """Stop all writes to the table, and delete the rows of attempts that Spark does not count."""
        self._undisturbed(statements.staged, statements.render("seal"))
        staged = dict(self._connection.execute(statements.render("staged")).fetchall())
        strays = [xid for xid in staged if xid not in counted]
        if strays:
            self._connection.execute(statements.render("forget"), {"xids": strays})
        if {xid: rows for xid, rows in staged.items() if xid in counted} != counted:
            raise CompactoryError(f"some rows that were staged for {self._table.label} are missing: run the load again")

    def _drop_leftovers(self) -> None:
        leftovers = self._connection.execute(query("load/leftovers"), {"oid": self._table.oid}).fetchall()
        self._drop([name for (name,) in leftovers if not name.startswith(self.stem)])

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            self._undisturbed(name, sql.SQL("DROP TABLE IF EXISTS {}").format(staging_table(name)))

    def _undisturbed(self, name: str, statement: sql.Composed) -> None:
        """Change a staging table; tasks that are not to write to it any more, and do not end, are disconnected."""
        for timeout in (_STRAY_TASKS, "0"):
            try:
                with self._connection.transaction():
                    self._connection.execute(query("load/begin"), {"lock_timeout": timeout})
                    self._connection.execute(statement)
            except psycopg.errors.LockNotAvailable:
                self._connection.execute(query("load/disconnect"), {"name": name})
            else:
                return

    def _try_lock(self, oid: int) -> bool:
        return bool(self._scalar("load/lock", self._lock(oid)))

    @staticmethod
    def _lock(oid: int) -> dict[str, int]:
        return {"lock_class": LOAD_LOCK_CLASS, "oid": oid}

    def _scalar(self, name: str, parameters: Mapping[str, Any]) -> Any:
        with self._connection.cursor(row_factory=scalar_row) as cursor:
            return cursor.execute(query(name), parameters).fetchone()
