"""Loads a Postgres table: readers of it, and a source that polls it, see the whole load or nothing of it.

Spark's tasks copy the rows into a table beside it; there they are compared, and one transaction merges those that
differ, through the table's own triggers. That transaction also writes the load's id down, so that a load whose end
nobody saw is known to be done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from secrets import token_hex
from typing import Any, Final
from uuid import uuid4

import psycopg
from pyspark.sql import DataFrame

from compactory.errors import ConfigError, Unreachable
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.postgres.session import check_server
from compactory_connectors.postgres.watched_connection import FORMATS, LIMITS, WatchedConnection, connect
from compactory_sql import query

from ..target import REJECTED, Change, Differences, Mode, Received, TargetColumn, Written
from .copying import Copying, Done
from .load_sql import LoadSql
from .loaded_table import LoadedTable, look_at
from .merging import Compared, compare, merge, refuse_same, same_key
from .staging import RowRefused, Staging

__all__ = ["CONNECTIONS", "PostgresTarget"]

CONNECTIONS: Final = 16
"""Tasks that copy at a time, unless an option says otherwise; a server is fastest with about one for each core."""
_SETTINGS: Final = {
    "lock_timeout": "0",  # the merge sets its own
    "work_mem": "256MB",  # the comparison joins two large tables once
    "default_transaction_isolation": "read committed",  # each statement of the merge looks at what others wrote
    "default_transaction_read_only": "off",
}


class PostgresTarget:
    """A table, adopted or not; see :class:`Target` for the order of calls. Owned by one thread.

    ``key`` and ``active`` are for a table that is not adopted. ``load_id`` names the load: one that was done under this
    id is not done again. An id that nobody has chosen (``is_named`` false, or None) is forgotten once the load is done.
    ``wait``: seconds that another load of the table is waited for; ``lock_timeout``: seconds that the merge waits for
    any lock of others before it gives up. ``connections``: how many of Spark's tasks may be connected at a time.
    ``former_load_id``: a load that nobody repeats once this one is done.
    """

    def __init__(
        self,
        *,
        connection: Connection,
        table: str,
        key: Sequence[str] | None = None,
        active: str | None = None,
        load_id: str | None = None,
        is_named: bool = True,
        wait: float = 30.0,
        lock_timeout: float = 30.0,
        connections: int = CONNECTIONS,
        former_load_id: str | None = None,
    ) -> None:
        if load_id == "":  # a variable of a scheduler that is not set
            raise ConfigError("the load id is empty: give each load one of its own, or none")
        self._place = connection
        self._name, self._key, self._active = table, key, active
        self._load_id = load_id or str(uuid4())
        self._is_named = is_named and load_id is not None
        self._former_load_id = former_load_id
        self._wait, self._lock_timeout = wait, lock_timeout
        self._connections = connections
        self._open_connection: WatchedConnection | None = None
        self._open_staging: Staging | None = None
        self._staged: tuple[LoadSql, Received] | None = None
        self._compared: Compared | None = None

    @property
    def label(self) -> str:
        return self._table.label

    @property
    def columns(self) -> Sequence[TargetColumn]:
        return self._table.targets

    @property
    def key(self) -> Sequence[str]:
        return self._table.key

    def repeated(self) -> Written | None:
        with self._errors():
            return self._done(self._connection)

    def receive(self, rows: DataFrame, mode: Mode) -> Received | None:
        """Stage rows while they are checked; see :meth:`Target.receive`. Raises what :meth:`compare` does, but for rows
        that Postgres refuses: others of their keys may count.
        """
        try:
            statements, received = self._stage(rows, mode)
        except RowRefused:
            self._forget()
            return None
        with self._errors():
            equal_key = same_key(self._connection, statements)
        if equal_key is not None:
            self._forget()
            return None
        self._staged = statements, received
        return received

    def compare(self, rows: DataFrame, mode: Mode, spared: DataFrame | None = None) -> Differences:
        """Stage the rows and list what they change; see :meth:`Target.compare`.

        Raises ConfigError where the load does not fit the table, Unreachable where another load has it.
        """
        checked = self._staged is not None
        statements, received = self._staged or self._stage(rows, mode)
        with self._errors():
            if not checked:
                refuse_same(self._connection, statements)
            if mode is Mode.REPLACE and spared is not None:
                statements = replace(statements, spared=self._staging.stage_keys(spared, "spared"))
            self._compared = compare(self._connection, statements, mode, received.rows)
        return self._compared.differences

    def open(self, names: Sequence[str], mode: Mode = Mode.UPSERT) -> tuple[str, Copying]:
        """Return the stem of a staging table for rows with these columns, for :meth:`take_up`, and what tasks do.

        Other loads of the table do not disturb it. Raises ConfigError where the columns do not fit.
        """
        with self._errors():
            stem = f"write_{self._table.oid}_{int(time.time())}_{token_hex(4)}"
            staging = Staging(self._connection, self._table, self._connections, stem)
            return stem, staging.copying(staging.statements(self._columns(names, mode)))

    def take_up(
        self, stem: str, names: Sequence[str], results: Sequence[Done], mode: Mode = Mode.UPSERT
    ) -> Differences:
        """Go on, in any process, with what tasks have staged; what it changes. Raises what :meth:`compare` does."""
        with self._errors():
            staging = self._open_staging = Staging(self._connection, self._table, self._connections, stem)
            staging.claim(self._wait)
            statements = staging.statements(self._columns(names, mode))
            staging.create(statements)  # no task has made it where there were no rows
            received = staging.received(statements, results)
            refuse_same(self._connection, statements)
            self._compared = compare(self._connection, statements, mode, received.rows)
        return self._compared.differences

    def discard(self, stem: str) -> None:
        with self._errors():
            Staging(self._connection, self._table, self._connections, stem).forget()

    def write(self) -> Written:
        """Merge what was found, in one transaction. Raises CompactoryError where a row breaks a rule of the table."""
        assert self._compared is not None, "compare comes first"
        with self._errors():
            finished = self._done(self._connection)
            if finished is not None:
                return finished
            try:
                counts = merge(
                    self._connection, self._compared, self._load_id, self._lock_timeout, self._former_load_id
                )
                return Written(counts=counts)
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise
                return self._outcome()

    def close(self) -> None:
        connection, self._open_connection = self._open_connection, None
        if connection is None:
            return
        try:
            if self._compared is not None and not self._is_named:
                connection.execute(query("load/forget_id"), {"oid": self._table.oid, "id": self._load_id})
            if self._open_staging is not None:
                self._open_staging.close()
        except psycopg.Error:
            pass  # the next load drops the rest
        finally:
            connection.close()

    def _stage(self, rows: DataFrame, mode: Mode) -> tuple[LoadSql, Received]:
        columns = self._columns(rows.columns, mode)
        with self._errors():
            statements = self._staging.statements(columns)
            return statements, self._staging.stage(rows, statements)

    def _forget(self) -> None:
        with self._errors():
            self._staging.forget()

    @property
    def _staging(self) -> Staging:
        if self._open_staging is None:
            staging = Staging(self._connection, self._table, self._connections)
            staging.claim(self._wait)
            self._open_staging = staging
        return self._open_staging

    @property
    def _connection(self) -> WatchedConnection:
        if self._open_connection is None:
            self._open_connection = self._connect()
        return self._open_connection

    def _connect(self) -> WatchedConnection:
        connection = connect({"application_name": "compactory-load", **self._place.conninfo})
        try:
            connection.settle(FORMATS, {**LIMITS, **_SETTINGS})
            check_server(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @cached_property
    def _table(self) -> LoadedTable:
        with self._errors():
            return look_at(self._connection, self._name, self._key, self._active)

    def _columns(self, names: Sequence[str], mode: Mode) -> list[str]:
        """The columns of the load, in the table's order."""
        table, names_of_load = self._table, set(names)
        problems = [
            f"{table.label} has no column {name} that a load may fill"
            for name in names_of_load - {c.name for c in table.targets} - {REJECTED}
        ]
        problems += [
            f"the load has no column {name}, which is part of the key of {table.label}"
            for name in table.key
            if name not in names_of_load
        ]
        if mode is Mode.REPLACE and table.active is None:
            problems.append(
                f"{table.label} has no column for soft deletion, and what a load does not have could only be deleted:"
                " load it with --mode upsert, or add a boolean column and adopt the table with --active"
            )
        if problems:
            raise ConfigError(problems)
        return [column.name for column in table.targets if column.name in names_of_load]

    def _done(self, connection: psycopg.Connection[Any]) -> Written | None:
        row = connection.execute(query("load/finished"), {"oid": self._table.oid, "id": self._load_id}).fetchone()
        if row is None:
            return None
        return Written(counts={Change(name): number for name, number in dict(row[0]).items()}, repeated=True)

    def _outcome(self) -> Written:
        """The outcome of a merge that lost its connection. The server may have committed the transaction all the same.

        It may also be about to: it has ended the transaction only once the lock of the old connection is gone.
        """
        self._open_connection = None
        staging = Staging(self._connection, self._table, self._connections)
        staging.claim(self._wait)
        staging.close()
        finished = self._done(self._connection)
        if finished is None:
            lost = f"{self._table.label}: the connection was lost, and nothing was changed: load again"
            raise Unreachable("Postgres", lost)
        return Written(counts=finished.counts)

    def _errors(self) -> AbstractContextManager[None]:
        return postgres_errors(self._place)
