"""Finds record keys that living rows have: by the key's columns, else by making the key of every row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import LiteralString, cast

from psycopg import sql

from compactory_connectors.connect.record.record import KeyParts, RowError

from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import ChunkReader
from ..postgres.poll_transaction import PollSnapshot, poll_transaction, read_transaction
from ..postgres.server import Server, statement
from .conditions import Conditions

__all__ = ["LivingRows", "columns_of_keys", "keys_joined", "keys_of_rows", "snapshot_of", "type_name"]

_ALL = sql.SQL("true")


@contextmanager
def snapshot_of(
    server: Server, plan: TablePlan, *, indexed: bool = False, changed: bool = False
) -> Iterator[PollSnapshot | None]:
    """Begin a read-only transaction on a plan's relation; None if it has no row versions.

    Raises TableReplaced if the table was replaced, or unless ``changed`` has other columns or triggers.
    """
    if not plan.kind.is_table:
        with read_transaction(server):
            yield None
        return
    table, shape = sql.Identifier(plan.schema, plan.name), None if changed else plan.shape
    with poll_transaction(server, table, plan.oid, shape=shape, indexed=indexed) as at:
        yield at


def columns_of_keys(plan: TablePlan) -> sql.Composable:
    """Return the plan's columns that keys need, with NULL in place of the others."""
    keys = {*plan.rows.key_columns, *plan.rows.case_columns}
    return sql.SQL(", ").join(plan.column(name) if name in keys else sql.SQL("NULL") for name in plan.rows.columns)


def keys_of_rows(server: Server, plan: TablePlan, cursor: str, where: sql.Composable) -> Iterator[list[bytes]]:
    """Yield the record keys of rows, by a cursor of the running transaction. Raises psycopg.Error, RowError."""
    query = statement("source/keys", columns=columns_of_keys(plan), table=plan.relation(), present=where)
    reader = ChunkReader(server.connection, cursor, query)
    while rows := reader.read_page():
        yield [key for key in map(plan.rows.render_key, rows) if key is not None]


class LivingRows:
    """The living rows of one table, by their record keys. Owned by one thread.

    Runs in the caller's transaction. Raises psycopg.Error.
    """

    def __init__(self, server: Server, plan: TablePlan) -> None:
        self._server = server
        self._plan = plan
        self._alive = Conditions(plan).alive()
        self._columns = columns_of_keys(plan)
        self._passes = count()
        self._is_utf8 = server.connection.info.parameter_status("server_encoding") == "UTF8"

    def count(self, limit: int) -> int:
        """Return the number of living rows, at most ``limit``."""
        parts = {"relation": self._plan.relation(), "alive": self._alive, "limit": sql.Literal(limit)}
        return int(self._server.scalar(statement("source/count_living", **parts)))

    def among(self, keys: Mapping[bytes, KeyParts | None], where: sql.Composable = _ALL) -> set[bytes]:
        """Return the keys that a living row has for which ``where`` holds. ``keys`` maps a key to its columns, or None.

        Raises RowError if the key of a row can't be made: it may be any of them.
        """
        alive = sql.SQL("{} AND ({})").format(self._alive, where)
        columns = {key: self._parts(key, parts) for key, parts in keys.items()}
        living = self._with_columns({parts for parts in columns.values() if parts}, alive)
        if keys_without_columns := {key for key, parts in columns.items() if not parts}:
            living |= self._by_key(keys_without_columns, alive)
        return living & keys.keys()

    def _parts(self, key: bytes, parts: KeyParts | None) -> KeyParts | None:
        if not self._plan.rows.exact_key:
            return None
        return parts or (self._plan.rows.key_parts(key) if self._is_utf8 else None)

    def _with_columns(self, keys: Collection[KeyParts], alive: sql.Composable) -> set[bytes]:
        """Return the record keys of rows with these columns.

        Values that are equal for Postgres (1.0 and 1.00, citext) may make two keys in the topic.
        """
        living: set[bytes] = set()
        if not keys:
            return living
        parts = {"columns": self._columns, "table": self._plan.relation(), "alive": alive}
        for row in self._server.rows(statement("source/rows_with_keys", **parts, **keys_joined(self._plan, keys))):
            with suppress(RowError):  # no row with these columns has a key then
                living.add(self._plan.rows.render_key(row) or b"")
        return living

    def _by_key(self, keys: Collection[bytes], alive: sql.Composable) -> set[bytes]:
        chunks = keys_of_rows(self._server, self._plan, f"living keys {next(self._passes)}", alive)
        return {key for chunk in chunks for key in chunk if key in keys}


def keys_joined(plan: TablePlan, keys: Iterable[KeyParts]) -> dict[str, sql.Composable]:
    """Return the parts of a query that joins rows ``t`` to keys, as ``arrays`` of a relation ``d`` with ``names``."""
    names: list[sql.Composable] = []
    arrays: list[sql.Composable] = []
    matches: list[sql.Composable] = []
    columns = zip(plan.rows.key_columns, plan.key_types, zip(*keys, strict=True), strict=True)
    for number, (column, kind, parts) in enumerate(columns):
        name = sql.Identifier(f"k{number}")
        names.append(name)
        texts = [None if part is None else part.decode() for part in parts]
        arrays.append(sql.SQL("{}::text[]").format(sql.Literal(texts)))
        matches.append(_match(column, name, kind, None in parts))
    return {
        "names": sql.SQL(", ").join(names),
        "arrays": sql.SQL(", ").join(arrays),
        "matches": sql.SQL(" AND ").join(matches),
    }


def _match(column: str, name: sql.Identifier, kind: str, nullable: bool) -> sql.Composable:
    """Return the condition of a key column with a value. NULL only if a key has one: indexes don't support that."""
    parts = {"column": sql.Identifier("t", column), "value": sql.SQL("d.{}").format(name), "type": type_name(kind)}
    equal = sql.SQL("{column} = {value}::{type}").format(**parts)
    if not nullable:
        return equal
    return sql.SQL("({} OR {column} IS NULL AND {value} IS NULL)").format(equal, **parts)


def type_name(declared: str) -> sql.SQL:
    """A type's name as the catalogue writes it, quoted where it needs to be."""
    return sql.SQL(cast("LiteralString", declared))  # type: ignore[redundant-cast]  # mypy takes it for str
