"""Rows of a poll → records. What a row that can't be converted does is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import LiteralString, cast

import psycopg
from psycopg import sql

from ..plan.row_function import Written
from ..plan.table_plan import TablePlan
from ..postgres.server import RawRow, Server, refusal, statement
from ..record.record import LogUnreadable, RowError, RowFailed
from .conditions import Conditions

__all__ = ["Renderer"]

_GONE = (b"2", b"3")


class Renderer:
    """Turns raw rows into records, deletions that would hit a living key left out. Owned by one thread.

    A row is the plan's columns, then its phase (0 living, 1 deactivated, 2 deleted), its place in the order of emission
    as texts, and what else the query gives.
    """

    def __init__(self, server: Server, plan: TablePlan) -> None:
        self._server = server
        self._plan = plan
        self._where = Conditions(plan)
        columns = plan.rows.columns
        self.phase = len(columns)
        """Where a row's phase stands; its place begins behind it."""
        keys = {*plan.rows.key_columns, *plan.rows.case_columns}
        self.key_columns: sql.Composable = sql.SQL(", ").join(
            sql.Identifier("t", name) if name in keys else sql.SQL("NULL") for name in columns
        )
        self.logged_names = [name for name in columns if name in keys or plan.rows.routed]
        """Columns that the tombstone of a logged row is made of; headers may be made of any."""
        declared = {column.name: column.declared for column in plan.rows.table.columns}
        self.logged_columns: sql.Composable = sql.SQL(", ").join(
            _logged(name, declared[name]) if name in self.logged_names else sql.SQL("NULL") for name in columns
        )
        self._key_positions = [columns.index(name) for name in plan.rows.key_columns]
        self._id_is_key = bool(plan.incrementing) and plan.incrementing in plan.rows.key_columns
        self._never_null = _never_null(plan)
        self.skipped: list[RowFailed] = []
        """What was left out since this was last emptied."""
        self._deactivated: list[bytes] = []

    def records(self, rows: Sequence[RawRow]) -> list[Written]:
        """The records of these rows. Raises RowFailed unless such rows are tolerated; then they are in ``skipped``.

        Raises LogUnreadable for a deletion whose key is not known, where a sweep finds it.
        """
        living = self._living(rows)
        records: list[Written] = []
        for row in rows:
            try:
                record = self._record(row, living)
            except RowError as error:
                if row[self.phase] in _GONE and self._plan.sweeps:
                    raise LogUnreadable(str(error)) from error
                failed = RowFailed(str(error), self.name(row))
                if not self._plan.tolerant:
                    raise failed from error
                self.skipped.append(failed)
            else:
                records += [] if record is None else [record]
        return records

    def drain_skipped(self) -> tuple[RowFailed, ...]:
        """What was left out since the last call."""
        skipped, self.skipped = tuple(self.skipped), []
        return skipped

    def drain_deactivated(self) -> tuple[bytes, ...]:
        """Keys of deactivated rows that became values since the last call."""
        found, self._deactivated = tuple(self._deactivated), []
        return found

    def name(self, row: RawRow) -> str:
        """A row by its id or primary key, for people; empty where it has neither."""
        names = self._plan.order or ("",)
        texts = [_text(part) for part in row[self.phase + 1 : self.phase + 1 + len(names)]]
        pairs = list(zip(names, texts, strict=False))[1 if self._plan.timestamps and len(names) > 1 else 0 :]
        return ", ".join(f"{name} {text}".strip() for name, text in pairs)

    def _record(self, row: RawRow, living: set[bytes | None]) -> Written | None:
        plan, phase = self._plan, row[self.phase]
        if phase == b"3":
            raise RowError(f"it was logged without one of the columns {', '.join(self.logged_names)}")
        for position, name in self._never_null:
            if row[position] is None:
                raise RowError(
                    f"column {name}: is NULL, though its table says NOT NULL (an outer join gives that); write an"
                    " expression in its place, such as COALESCE, which makes the field optional"
                )
        if phase != b"0" and plan.rows.render_key(row) in living:
            return None
        gone = phase == b"2" or (phase == b"1" and plan.tombstones)
        record = plan.rows.render_deletion(row) if gone else plan.rows.render(row)
        if record is not None and record[0] is None and not plan.keyless:
            raise RowError("the record's key is null, which a compacted topic refuses")
        if phase == b"1" and record is not None and record[0] is not None and record[1] is not None:
            self._deactivated.append(record[0])
        return record

    def _living(self, rows: Sequence[RawRow]) -> set[bytes | None]:
        """Keys among the deletes of these rows that a living row has in this snapshot: an active row wins.

        What is equal for Postgres (1.0 and 1.00, citext) may be two keys in the topic, so that rendered keys decide.
        """
        phase = self.phase
        keys = {
            tuple(row[position] for position in self._key_positions)
            for row in rows
            if row[phase] in _GONE or (row[phase] == b"1" and not self._id_is_key)
        }
        if not keys or not self._key_positions:
            return set()
        living: set[bytes | None] = set()
        for row in self._alike(keys, logged=any(row[phase] in _GONE for row in rows)):
            with suppress(RowError):  # the deleted row that has these columns has no key either
                living.add(self._plan.rows.render_key(row))
        return living

    def _alike(self, keys: Iterable[tuple[bytes | None, ...]], *, logged: bool) -> list[RawRow]:
        """Living rows that have one of these keys."""
        try:
            return self._server.rows(self._rows_under(keys))
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            if logged and self._plan.sweeps:  # the key's type takes the deleted row's value no more
                raise LogUnreadable(refusal(error)) from error
            raise

    def _rows_under(self, keys: Iterable[tuple[bytes | None, ...]]) -> sql.Composed:
        """The query for living rows that have one of these keys."""
        names: list[sql.Composable] = []
        arrays: list[sql.Composable] = []
        matches: list[sql.Composable] = []
        columns = zip(self._plan.rows.key_columns, self._plan.key_types, zip(*keys, strict=True), strict=True)
        for number, (column, declared, parts) in enumerate(columns):
            name = sql.Identifier(f"k{number}")
            names.append(name)
            texts = [None if part is None else part.decode() for part in parts]
            arrays.append(sql.SQL("{}::text[]").format(sql.Literal(texts)))
            matches.append(_match(column, name, declared, None in parts))
        return statement(
            "source/living",
            columns=self.key_columns,
            names=sql.SQL(", ").join(names),
            arrays=sql.SQL(", ").join(arrays),
            table=self._plan.relation(),
            matches=sql.SQL(" AND ").join(matches),
            alive=self._where.alive(),
        )


def _never_null(plan: TablePlan) -> list[tuple[int, str]]:
    """Columns whose schema allows no null, with their positions, where Postgres does not see to it.

    The columns of a query have the NOT NULL of their tables, whatever its joins do; a foreign server promises nothing.
    The real connector's task fails on such a row.
    """
    if plan.kind not in {"q", "f"}:
        return []
    fixed = {column.name for column in plan.rows.table.columns if column.not_null}
    return [(position, name) for position, name in enumerate(plan.rows.columns) if name in fixed]


def _logged(name: str, declared: str) -> sql.Composable:
    return statement("source/logged_column", column=sql.Identifier(name), type=_type(declared))


def _match(column: str, name: sql.Identifier, declared: str, nullable: bool) -> sql.Composable:
    """A key column equal to a value; NULL, which no index condition takes, only where one is looked for."""
    parts = {"column": sql.Identifier("t", column), "value": sql.SQL("d.{}").format(name), "type": _type(declared)}
    equal = sql.SQL("{column} = {value}::{type}").format(**parts)
    if not nullable:
        return equal
    return sql.SQL("({} OR {column} IS NULL AND {value} IS NULL)").format(equal, **parts)


def _type(declared: str) -> sql.SQL:
    """A type's name as the catalogue writes it, quoted where it needs to be."""
    return sql.SQL(cast("LiteralString", declared))  # type: ignore[redundant-cast]  # mypy takes it for str


def _text(raw: bytes | None) -> str:
    return "NULL" if raw is None else raw.decode()
