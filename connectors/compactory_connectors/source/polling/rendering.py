"""Rows of a poll → records. Decides what follows from a row that can't be converted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import psycopg
from psycopg import sql

from compactory_connectors.connect.record.record import KeyParts, LogUnreadable, RowError, RowFailed
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.postgres.postgres_errors import refusal

from ..config.selection import RelationKind
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import RawRow
from ..postgres.server import Server, statement
from .living_rows import LivingRows, columns_of_keys, type_name
from .removal import Removal

__all__ = ["Rendered", "Renderer", "logged_columns"]

_GONE = (b"2", b"3")


@dataclass(slots=True)
class Rendered:
    """Records of rows; which of them stand for deactivated or deleted rows; and rows that were skipped."""

    records: list[ProducerRecord] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    skipped: list[RowFailed] = field(default_factory=list)

    def __iadd__(self, other: Rendered) -> Self:
        self.records += other.records
        self.removals += other.removals
        self.skipped += other.skipped
        return self


class Renderer:
    """Turns raw rows into records, deletions that would hit a living key left out. Owned by one thread.

    A row is the plan's columns, then its phase (0 living, 1 deactivated, 2 deleted), its place in the order of emission
    as texts, and what else the query gives.
    """

    def __init__(self, server: Server, plan: TablePlan) -> None:
        self._plan = plan
        self.phase = len(plan.rows.columns)
        """Where a row's phase stands; its place begins behind it."""
        self.key_columns = columns_of_keys(plan)
        self._living_rows = LivingRows(server, plan)
        self.logged_names, self.logged_columns = logged_columns(plan)
        self._id_is_key = plan.rows.exact_key and plan.tie_breakers == plan.rows.key_columns == (plan.incrementing,)
        self._never_null = _never_null(plan)
        self._keyless = plan.keyless

    def render(self, rows: Sequence[RawRow]) -> Rendered:
        """The records of these rows. Raises RowFailed for a row that can't be converted, unless such are tolerated.

        Raises LogUnreadable for a deletion whose key is not known, where a sweep finds it.
        """
        found, at = Rendered(), self.phase
        convert, keyless, plain = self._plan.rows.render, self._keyless, not self._never_null
        dead = [row for row in rows if row[at] != b"0"]
        living = self._living(dead) if dead else set[bytes]()
        for row in rows:
            try:
                record = convert(row) if plain and row[at] == b"0" else self._record(row, living)
                if record is None:
                    continue
                if record[0] is None and not keyless:
                    raise RowError("the record's key is null, which a compacted topic refuses")
            except RowError as error:
                if row[at] in _GONE and self._plan.sweeps:
                    raise LogUnreadable(str(error)) from error
                failed = RowFailed(str(error), self.name(row))
                if not self._plan.connector.errors.skip:
                    raise failed from error
                found.skipped.append(failed)
                continue
            found.records.append(record)
            if row[at] != b"0" and record[0] is not None:
                found.removals.append(Removal(record[0], record[1], self._plan.rows.key_columns_of(row)))
        return found

    def name(self, row: RawRow) -> str:
        """A row by its id or primary key, for people; empty where it has neither."""
        names = self._plan.order or ("",)
        texts = [_text(part) for part in row[self.phase + 1 : self.phase + 1 + len(names)]]
        pairs = list(zip(names, texts, strict=False))[1 if self._plan.timestamps and len(names) > 1 else 0 :]
        return ", ".join(f"{name} {text}".strip() for name, text in pairs)

    def _record(self, row: RawRow, living: set[bytes]) -> ProducerRecord | None:
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
        gone = phase == b"2" or (phase == b"1" and plan.sends_tombstones)
        return plan.rows.render_deletion(row) if gone else plan.rows.render(row)

    def _living(self, rows: Sequence[RawRow]) -> set[bytes]:
        """Keys among the deletes of these rows that a living row has in this snapshot: an active row wins."""
        keys: dict[bytes, KeyParts | None] = {}
        for row in rows:
            if row[self.phase] in _GONE or (row[self.phase] == b"1" and not self._id_is_key):
                with suppress(RowError):  # there is no record to be kept from it
                    if (key := self._plan.rows.render_key(row)) is not None:
                        keys[key] = self._plan.rows.key_columns_of(row)
        if not keys or not self._plan.rows.key_columns:
            return set()
        try:
            return self._living_rows.among(keys)
        except RowError:  # not known of all rows: what publishes the deletes finds that again, and keeps them
            return set()
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            if self._plan.sweeps and any(row[self.phase] in _GONE for row in rows):
                raise LogUnreadable(refusal(error)) from error  # the key's type takes the deleted row's value no more
            raise


def logged_columns(plan: TablePlan) -> tuple[list[str], sql.Composable]:
    """Columns that the tombstone of a logged row ``d`` is made of, and the plan's columns with NULL for the others."""
    rows = plan.rows
    names = [name for name in rows.columns if name in {*rows.key_columns, *rows.case_columns}]
    columns: list[sql.Composable] = [sql.SQL("NULL")] * len(rows.columns)
    for column in rows.table.columns:
        if column.name in names:
            parts = {"column": sql.Identifier(column.name), "type": type_name(column.declared)}
            parts["value"] = plan.column(column.name)
            columns[rows.columns.index(column.name)] = statement("source/logged_column", **parts)
    return names, sql.SQL(", ").join(columns)


def _never_null(plan: TablePlan) -> list[tuple[int, str]]:
    """Columns whose schema allows no null, with their positions, where Postgres does not see to it.

    The columns of a query have the NOT NULL of their tables, whatever its joins do; a foreign server promises nothing.
    The real connector's task fails on such a row.
    """
    if plan.kind not in {RelationKind.QUERY, RelationKind.FOREIGN_TABLE}:
        return []
    fixed = {column.name for column in plan.rows.table.columns if column.not_null}
    return [(position, name) for position, name in enumerate(plan.rows.columns) if name in fixed]


def _text(raw: bytes | None) -> str:
    return "NULL" if raw is None else raw.decode(errors="replace")
