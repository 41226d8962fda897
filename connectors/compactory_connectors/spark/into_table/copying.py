"""Tasks of Spark copy rows into a staging table, each in a transaction of its own.

Runs in Python workers. A task that is tried again, or that runs twice, copies twice. Each attempt reports the id of its
transaction. Spark counts one attempt of a task, and the load deletes the rows of the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import compute, csv

from ..record_batch import Batches, of_rows

__all__ = ["RESULT", "Copying", "Done"]

RESULT: Final = pa.schema(
    [
        ("xid", pa.int64()),
        ("copied", pa.int64()),
        ("rejected", pa.int64()),
        ("refused", pa.string()),
    ]
)
"""The report of a task: its transaction, how many rows it copied and left out, and why Postgres refused one."""

_CONNECTION: Final[dict[str, Any]] = {
    "application_name": "compactory-load-task",
    "client_encoding": "UTF8",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_SETTINGS: Final = (
    "SET IntervalStyle = postgres; SET DateStyle = 'ISO, YMD'; SET TimeZone = 'UTC';"
    " SET lock_timeout = 0; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0"
)
"""Makes the meaning of texts independent of the settings of role and database; sets no limit of time."""

_SLOT: Final = (
    "SELECT number FROM generate_series(1, %s) AS number"
    " WHERE pg_try_advisory_lock(hashtextextended(%s, number)) LIMIT 1"
)
"""Takes one of a load's numbered slots for as long as the connection lives; no row while others have all of them."""
_SLOT_INTERVAL: Final = 0.2  # seconds between two attempts

_LOST: Final = ("08", "53", "57", "58")
"""Classes of errors that may be gone at another attempt: connections, resources, an operator, the system."""


@dataclass(slots=True, kw_only=True)
class Done:
    """A row of :data:`RESULT`."""

    xid: int = 0
    copied: int = 0
    rejected: int = 0
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Copies into a staging table. ``conninfo`` are libpq's parameters, ``columns`` the table's columns in order.

    Rows may have one more column: true where the row is rejected, and not to be copied. At most ``connections`` tasks
    copy at a time; further ones wait. ``create`` makes the staging table; empty: it exists.
    """

    conninfo: Mapping[str, str]
    staged: str
    columns: tuple[str, ...]
    connections: int
    create: str = ""

    def __call__(self, batches: Batches) -> Batches:
        yield of_rows([astuple(self.copy(batches))], RESULT)

    def copy(self, batches: Iterable[pa.RecordBatch]) -> Done:
        """Copy one partition. Raises psycopg.Error where another attempt may succeed."""
        result = Done()
        try:
            with self._connect() as connection:
                self._copy(connection, batches, result)
        except psycopg.Error as error:
            if not error.sqlstate or error.sqlstate.startswith(_LOST):
                raise
            from compactory_connectors.postgres.postgres_errors import refusal  # workers are spared it else

            result.refused = refusal(error) + _column(error)
        return result

    def _connect(self) -> psycopg.Connection[Any]:
        """Connect with one of the load's slots. A task that finds none holds no connection while it waits."""
        while True:
            connection = psycopg.connect(**{**_CONNECTION, **self.conninfo})
            if connection.execute(_SLOT, [self.connections, self.staged]).fetchone() is not None:
                return connection
            connection.close()
            time.sleep(_SLOT_INTERVAL)

    def _copy(self, connection: psycopg.Connection[Any], batches: Iterable[pa.RecordBatch], result: Done) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            sql.Identifier("compactory_staging", self.staged), names
        )
        connection.execute(_SETTINGS)
        if self.create:
            connection.execute(self.create.encode())
            connection.commit()
        row = connection.execute("SELECT pg_current_xact_id()::text::numeric % 4294967296").fetchone()
        assert row is not None
        result.xid = int(row[0])
        with connection.cursor().copy(into) as copy:
            for batch in batches:
                good = self._good(batch)
                result.rejected += batch.num_rows - good.num_rows
                result.copied += good.num_rows
                copy.write(_lines(good))
        connection.commit()

    def _good(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are to be copied."""
        if batch.num_columns == len(self.columns):
            return batch
        rejected = batch.column(len(self.columns))
        rows = batch.select(range(len(self.columns)))
        return rows.filter(compute.call_function("invert", [rejected])) if rejected.true_count else rows


def _lines(batch: pa.RecordBatch) -> bytes:
    """The rows as CSV: texts in quotes, NULL as nothing."""
    columns = [_written(column) for column in batch.columns]
    lines = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=max(batch.num_rows, 1))
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), lines, options)
    written: bytes = lines.getvalue().to_pybytes()
    return written


def _written(column: pa.Array) -> pa.Array:
    """A column of types that the writer spells as Postgres reads them."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string())
    return column


def _column(error: psycopg.Error) -> str:
    """Return the column that an error of COPY names."""
    place = (error.diag.context or "").rpartition(", column ")
    name = place[2].partition(":")[0]
    return f", column {name}" if place[1] else ""
