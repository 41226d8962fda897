"""Which record keys a living row has: found by the key's columns, else by looking at every row's key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import LiteralString, cast

from psycopg import sql

from compactory_connectors.connect.record.record import KeyParts, RowError

from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import ChunkReader, PageFill
from ..postgres.poll_transaction import PollSnapshot, poll_transaction, read_transaction
from ..postgres.server import Server, statement
from .conditions import Conditions

__all__ = ["LivingRows", "columns_of_keys", "keys_joined", "snapshot_of", "type_name"]

_ALL = sql.SQL("true")
_ROWS = 10_000  # keys of the table that are looked at in one go


@contextmanager
def snapshot_of(
    server: Server, plan: TablePlan, *, indexed: bool = False, changed: bool = False
) -> Iterator[PollSnapshot | None]:
    """A read-only transaction on what a plan reads; None where there are no row versions.

    Raises TableReplaced where it is another table, or unless ``changed`` its columns or triggers are others.
    """
    serializable = plan.connector.serializable
    if not plan.kind.is_table:
        with read_transaction(server, serializable=serializable):
            yield None
        return
    table, shape = sql.Identifier(plan.schema, plan.name), None if changed else plan.shape
    with poll_transaction(
        server, table, plan.oid, shape=shape, indexed=indexed, serializable=plan.connector.serializable
    ) as at:
        yield at


def columns_of_keys(plan: TablePlan) -> sql.Composable:
    """The plan's columns as far as keys need them, NULL in place of the others."""
    keys = {*plan.rows.key_columns, *plan.rows.case_columns}
    return sql.SQL(", ").join(plan.column(name) if name in keys else sql.SQL("NULL") for name in plan.rows.columns)


class LivingRows:
    """The living rows of one table, by their record keys. Owned by one thread.

    Everything is asked in the transaction that the caller has begun, and raises psycopg.Error.
    """

    def __init__(self, server: Server, plan: TablePlan) -> None:
        self._server = server
        self._plan = plan
        self._alive = Conditions(plan).alive()
        self._columns = columns_of_keys(plan)
        self._passes = count()
        self._takes_any = server.connection.info.parameter_status("server_encoding") == "UTF8"

    def count(self, limit: int) -> int:
        """Return the number of living rows, at most ``limit``."""
        parts = {"relation": self._plan.relation(), "alive": self._alive, "limit": sql.Literal(limit)}
        return int(self._server.scalar(statement("source/count_living", **parts)))

    def among(self, keys: Mapping[bytes, KeyParts | None], where: sql.Composable = _ALL) -> set[bytes]:
        """Those of these keys that a living row has for which ``where`` holds; with their columns if those are known.

        Raises RowError where the key of a row is not known: it may be any of them.
        """
        alive = sql.SQL("{} AND ({})").format(self._alive, where)
        parts = {key: self._parts(key, known) for key, known in keys.items()}
        found = self._under({each for each in parts.values() if each}, alive)
        if rest := {key for key, each in parts.items() if not each}:
            found |= self._of_all(rest, alive)
        return found & keys.keys()

    def _parts(self, key: bytes, known: KeyParts | None) -> KeyParts | None:
        if not self._plan.rows.exact_key:
            return None
        return known or (self._plan.rows.key_parts(key) if self._takes_any else None)

    def _under(self, keys: Collection[KeyParts], alive: sql.Composable) -> set[bytes]:
        """The record keys of rows with these columns.

        What is equal for Postgres (1.0 and 1.00, citext) may be two keys in the topic, so that rendered keys decide.
        """
        found: set[bytes] = set()
        if not keys:
            return found
        parts = {"columns": self._columns, "table": self._plan.relation(), "alive": alive}
        for row in self._server.rows(statement("source/rows_with_keys", **parts, **keys_joined(self._plan, keys))):
            with suppress(RowError):  # no row with these columns has a key then
                found.add(self._plan.rows.render_key(row) or b"")
        return found

    def _of_all(self, wanted: Collection[bytes], alive: sql.Composable) -> set[bytes]:
        query = statement("source/keys", columns=self._columns, table=self._plan.relation(), present=alive)
        reader = ChunkReader(self._server.connection, f"living keys {next(self._passes)}", query, PageFill(_ROWS))
        render_key = self._plan.rows.render_key
        found: set[bytes] = set()
        while rows := reader.read_page():
            found.update(key for key in map(render_key, rows) if key is not None and key in wanted)
        return found


def keys_joined(plan: TablePlan, keys: Iterable[KeyParts]) -> dict[str, sql.Composable]:
    """The parts of a query that joins rows ``t`` to these keys, as ``arrays`` of a relation ``d`` with ``names``."""
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
    """A key column equal to a value; NULL, which no index condition takes, only where one is looked for."""
    parts = {"column": sql.Identifier("t", column), "value": sql.SQL("d.{}").format(name), "type": type_name(kind)}
    equal = sql.SQL("{column} = {value}::{type}").format(**parts)
    if not nullable:
        return equal
    return sql.SQL("({} OR {column} IS NULL AND {value} IS NULL)").format(equal, **parts)


def type_name(declared: str) -> sql.SQL:
    """A type's name as the catalogue writes it, quoted where it needs to be."""
    return sql.SQL(cast("LiteralString", declared))  # type: ignore[redundant-cast]  # mypy takes it for str
