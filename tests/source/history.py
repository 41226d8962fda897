"""Random histories of one table: transactions of several connections, interleaved with a source's polls in one thread.

Nothing runs at the same time, so that a seed repeats a history, statement by statement. Locks are given up after
milliseconds: the statement fails, as it may for an application.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg

from compactory_connectors.schema import Adoption, adopt, install

__all__ = ["INSTANT", "LOCK_TIMEOUT", "ROWS", "Layout", "Shared", "create", "living"]

ROWS = 60

INSTANT = "2026-03-01 12:00:00"
"""The timestamp of very many rows."""

LOCK_TIMEOUT = "-c lock_timeout=8ms -c deadlock_timeout=20ms -c statement_timeout=3s"
"""A cursor's pin keeps VACUUM (FREEZE) waiting for no lock, hence the last one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the table is like."""

    partitioned: bool
    soft: bool
    adopted: bool
    table: str = "terminal"

    def named(self, statement: str) -> str:
        """A statement about ``terminal`` and its partitions ``part_…``, about this table."""
        return statement.replace("part_", f"{self.table}_part_").replace("terminal", self.table)

    def __str__(self) -> str:
        """The name of a test's parameter."""
        shape = "partitioned" if self.partitioned else "plain"
        return f"{shape}-{'soft' if self.soft else 'hard'}-{'adopted' if self.adopted else 'as-it-is'}"


def create(connection: psycopg.Connection, layout: Layout) -> None:
    """The table, the one that its foreign key refers to, and rows; adopted where the layout says so."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS acquirer (id int8 PRIMARY KEY);"
        " INSERT INTO acquirer SELECT generate_series(1, 5) ON CONFLICT DO NOTHING"
    )
    _make(connection, layout)
    if layout.adopted:
        install(connection)
        active = "is_active" if layout.soft else None
        adoption = Adoption(table=layout.table, key=("id",), active=active, timestamp="changed", notify=False)
        adopt(connection, adoption)


def _make(connection: psycopg.Connection, layout: Layout) -> None:
    run = functools.partial(_run, connection, layout)
    run(
        "CREATE TABLE terminal (id int8 NOT NULL, slot int NOT NULL,"
        " acquirer int8 REFERENCES acquirer ON UPDATE CASCADE,"
        " value text, is_active bool NOT NULL DEFAULT true,"
        " changed timestamp NOT NULL DEFAULT timezone('utc', current_timestamp), "
        + ("PRIMARY KEY (id, slot)) PARTITION BY LIST (slot)" if layout.partitioned else "PRIMARY KEY (id))")
    )
    if layout.partitioned:
        for slot in (1, 2, 3):
            run(f"CREATE TABLE part_{slot} PARTITION OF terminal FOR VALUES IN ({slot})")
    run(
        "INSERT INTO terminal (id, slot, acquirer, value, changed)"
        f" SELECT n, 1 + n % 3, 1 + n % 5, 'first ' || n, '{INSTANT}' FROM generate_series(1, {ROWS}) n"
    )


def _run(connection: psycopg.Connection, layout: Layout, statement: str) -> None:
    connection.execute(layout.named(statement))


@dataclass(slots=True)
class Shared:
    """What writers have in common: every value and id is given once. Thread-safe."""

    layout: Layout
    ids: int = ROWS
    """The highest that was given out, or nearly so."""
    waiting: list[int] = field(default_factory=list)
    """Slots of partitions that are filled and not attached yet."""
    _values: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(ROWS + 1))
    log: list[str] = field(default_factory=list)

    def value(self) -> str:
        """A value that no row had before."""
        return f"v{next(self._values)}"

    def id(self) -> int:
        """An id that no row had before."""
        self.ids = next(self._ids)
        return self.ids


def living(url: str, layout: Layout) -> dict[bytes, str]:
    """What the topic must hold: values of active rows, or of all where nothing says which are active."""
    where = "WHERE is_active" if layout.soft else ""
    query = layout.named(f"SELECT id, slot, acquirer, value, is_active FROM terminal {where}")
    with psycopg.connect(url) as connection:
        return {str(row[0]).encode(): repr(row[1:]) for row in connection.execute(query).fetchall()}
