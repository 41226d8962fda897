"""What a table says its topic should hold: every row's record, in one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import LiteralString, NamedTuple, TypeAlias, cast

from psycopg import sql

from compactory_connectors.source.conditions import Conditions
from compactory_connectors.source.offset import SourceOffset
from compactory_connectors.source.page import PAGE_ROWS
from compactory_connectors.source.place import since
from compactory_connectors.source.record import RowError
from compactory_connectors.source.server import ChunkReader, PollSnapshot, RawRow, Server, statement
from compactory_connectors.source.table_plan import Reading, TablePlan

from .due import due_deletions, due_rows
from .judgement import Row

__all__ = ["Expected", "KeyParts", "Look", "TableSide"]

_FlagsOf: TypeAlias = Callable[[RawRow], int]
KeyParts: TypeAlias = tuple[bytes | None, ...]
"""The columns of a record's key, as Postgres writes them."""


class Expected(NamedTuple):
    """A key that the table has something to say of. ``flags`` are those of :class:`Row`."""

    key: bytes
    value: bytes | None
    flags: int
    parts: KeyParts


class Look:
    """One snapshot of a table, with what the stored offset covers of it."""

    def __init__(self, server: Server, plan: TablePlan, offset: SourceOffset | None, at: PollSnapshot | None) -> None:
        self._server = server
        self._plan = plan
        self._where = Conditions(plan)
        self._due = due_rows(server, plan, offset, at)
        self._deletions = due_deletions(server, plan, offset, at)
        self._since = since(plan, (offset.initial if offset else None) or plan.since)
        columns = plan.rows.columns
        self._columns = sql.SQL(", ").join(sql.Identifier("t", name) for name in columns)
        self._positions = [columns.index(name) for name in plan.rows.key_columns]
        self.unreadable: list[str] = []
        """Rows of which not even the key is known, each with the reason."""

    def rows(self, topic: str, only: Sequence[KeyParts] | None = None) -> Iterator[list[Expected]]:
        """Every row that goes to a topic, in chunks; with ``only`` no others but those with these keys' columns."""
        query = statement(
            "verification/rows",
            columns=self._columns,
            phase=self._where.phase(),
            present=self._where.present(),
            due=self._due,
            optional=sql.SQL("false") if self._since is None else sql.SQL("({}) IS NOT TRUE").format(self._since),
            relation=self._plan.relation(),
            chosen=sql.SQL("true") if only is None else self._having(only),
            suffix=self._plan.suffix_text() if self._plan.reading is Reading.WHOLE else sql.SQL(""),
        )
        yield from self._read("compared", query, topic, self._flags)
        if self._deletions is not None and only is None:
            yield from self._read("compared deletions", self._deleted(), topic, _deleted)

    def _read(self, name: str, query: sql.Composed, topic: str, flags_of: _FlagsOf) -> Iterator[list[Expected]]:
        reader = ChunkReader(self._server.connection, name, query)
        while rows := reader.fetch(PAGE_ROWS):
            found: list[Expected] = []
            for row in rows:
                expected = self._expected(row, topic, flags_of(row))
                if expected is not None:
                    found.append(expected)
            yield found

    def _expected(self, row: RawRow, topic: str, flags: int) -> Expected | None:
        plan = self._plan.rows
        try:
            record = plan.render_deletion(row) if flags & Row.ABSENT else plan.render(row)
        except RowError as error:
            return self._failed(row, str(error))
        if record is None or record[0] is None or (len(record) != 2 and record[2] != topic):
            return None
        if record[1] is None:
            flags |= Row.ABSENT
        return Expected(record[0], record[1], flags, self._parts(row))

    def _failed(self, row: RawRow, why: str) -> Expected | None:
        """A row whose record is not known; where its key is, nothing is said of that key."""
        try:
            key = self._plan.rows.render_key(row)
        except RowError:
            key = None
        if key is None:
            self.unreadable.append(why)
            return None
        return Expected(key, None, Row.UNREADABLE, self._parts(row))

    def _parts(self, row: RawRow) -> KeyParts:
        return tuple(row[position] for position in self._positions)

    def _flags(self, row: RawRow) -> int:
        present, due, optional = row[len(self._plan.rows.columns) + 1 :]
        flags = 0 if present == b"t" else int(Row.ABSENT)
        if due == b"t":
            flags |= Row.DUE
        return flags | Row.OPTIONAL if optional == b"t" else flags

    def _deleted(self) -> sql.Composed:
        table = sql.Identifier(self._plan.schema, self._plan.name)
        assert self._deletions is not None
        return statement(
            "source/deleted",
            columns=self._columns,
            nulls=sql.SQL(""),
            table=table,
            oid=sql.Literal(self._plan.oid),
            unseen=self._deletions,
        )

    def _having(self, keys: Sequence[KeyParts]) -> sql.Composable:
        """Rows whose key columns are among those of the keys, each by itself: of several columns more than the keys."""
        columns = zip(self._plan.rows.key_columns, self._plan.key_types, zip(*keys, strict=True), strict=True)
        conditions: list[sql.Composable] = []
        for name, declared, parts in columns:
            texts = sorted({part.decode() for part in parts if part is not None})
            equal = sql.SQL("{} IN (SELECT v::{} FROM unnest({}::text[]) AS v)").format(
                sql.Identifier("t", name), _type(declared), sql.Literal(texts)
            )
            nullable = sql.SQL("({} OR {} IS NULL)").format(equal, sql.Identifier("t", name))
            conditions.append(nullable if None in parts else equal)
        return sql.SQL(" AND ").join(conditions)


class TableSide:
    """One table of a connector. Owned by one thread. Raises psycopg.Error and TableReplaced."""

    def __init__(self, server: Server, plan: TablePlan) -> None:
        self.plan = plan
        self._server = server

    @contextmanager
    def look(self, offset: SourceOffset | None) -> Iterator[Look]:
        """A snapshot of now; ``offset`` is what the source has stored."""
        plan = self.plan
        if plan.kind in "rp":
            table = sql.Identifier(plan.schema, plan.name)
            with self._server.poll(table, plan.oid, serializable=plan.serializable) as at:
                yield Look(self._server, plan, offset, at)
        else:
            with self._server.reading(serializable=plan.serializable):
                yield Look(self._server, plan, offset, None)


def _deleted(row: RawRow) -> int:
    del row
    return Row.ABSENT | Row.DUE


def _type(declared: str) -> sql.SQL:
    """A type's name as the catalogue writes it, quoted where it needs to be."""
    return sql.SQL(cast("LiteralString", declared))  # type: ignore[redundant-cast]  # mypy takes it for str
