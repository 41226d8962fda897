"""Makes records of the rows of a poll, and decides what follows from a row that can't be converted."""

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
from ..offsets.offset_parts import RowPhase
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import RawRow
from ..postgres.server import Server, statement
from .living_rows import LivingRows, columns_of_keys, type_name
from .removal import Removal

__all__ = ["Rendered", "Renderer", "logged_columns"]

_LIVING, _DEACTIVATED, _DELETED, _INCOMPLETE = (phase.raw for phase in RowPhase)
_LOGGED = (_DELETED, _INCOMPLETE)  # rows of the deletion log


@dataclass(slots=True)
class Rendered:
    """Records of rows; which of them stand for deactivated or deleted rows; and rows that were skipped."""

    records: list[ProducerRecord] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    skipped: list[RowFailed] = field(default_factory=list)

    def __iadd__(self, added: Rendered) -> Self:
        self.records += added.records
        self.removals += added.removals
        self.skipped += added.skipped
        return self


class Renderer:
    """Makes records of raw rows, without deletions of keys that a living row has. Owned by one thread.

    A row is the plan's columns, then its row phase, its place in the order of emission as texts, and further columns of
    the query.
    """

    def __init__(self, server: Server, plan: TablePlan) -> None:
        self._plan = plan
        self.phase = len(plan.rows.columns)
        """The index of a row's phase; its place follows."""
        self.key_columns = columns_of_keys(plan)
        self._living_rows = LivingRows(server, plan)
        self.logged_names, self.logged_columns = logged_columns(plan)
        self._id_is_key = plan.rows.exact_key and plan.tie_breakers == plan.rows.key_columns == (plan.incrementing,)
        self._never_null = _never_null(plan)
        self._keyless = plan.keyless

    def render(self, rows: Sequence[RawRow]) -> Rendered:
        """Return the records of these rows. Raises RowFailed for a row that can't be converted, unless it is tolerated.

        Raises LogUnreadable for a deletion whose key can't be made, if a sweep finds it.
        """
        rendered, phase = Rendered(), self.phase
        convert, keyless, plain = self._plan.rows.render, self._keyless, not self._never_null
        dead = [row for row in rows if row[phase] != _LIVING]
        living = self._living(dead) if dead else set[bytes]()
        for row in rows:
            try:
                record = convert(row) if plain and row[phase] == _LIVING else self._record(row, living)
                if record is None:
                    continue
                if record[0] is None and not keyless:
                    raise RowError("the record's key is null, which a compacted topic refuses")
            except RowError as error:
                if row[phase] in _LOGGED and self._plan.sweeps:
                    raise LogUnreadable(str(error)) from error
                failed = RowFailed(str(error), self.name(row))
                if not self._plan.connector.errors.skip:
                    raise failed from error
                rendered.skipped.append(failed)
                continue
            rendered.records.append(record)
            if row[phase] != _LIVING and record[0] is not None:
                rendered.removals.append(Removal(record[0], record[1], self._plan.rows.key_columns_of(row)))
        return rendered

    def name(self, row: RawRow) -> str:
        """Return the name of a row for people: its id or primary key, empty without one."""
        names = self._plan.order or ("",)
        texts = [_text(part) for part in row[self.phase + 1 : self.phase + 1 + len(names)]]
        pairs = list(zip(names, texts, strict=False))[1 if self._plan.timestamps and len(names) > 1 else 0 :]
        return ", ".join(f"{name} {text}".strip() for name, text in pairs)

    def _record(self, row: RawRow, living: set[bytes]) -> ProducerRecord | None:
        plan, phase = self._plan, row[self.phase]
        if phase == _INCOMPLETE:
            raise RowError(f"it was logged without one of the columns {', '.join(self.logged_names)}")
        for position, name in self._never_null:
            if row[position] is None:
                raise RowError(
                    f"column {name}: is NULL, though its table says NOT NULL (an outer join gives that); write an"
                    " expression in its place, such as COALESCE, which makes the field optional"
                )
        if phase != _LIVING and plan.rows.render_key(row) in living:
            return None
        is_deleted = phase == _DELETED or (phase == _DEACTIVATED and plan.sends_tombstones)
        return plan.rows.render_deletion(row) if is_deleted else plan.rows.render(row)

    def _living(self, rows: Sequence[RawRow]) -> set[bytes]:
        """Return the keys of deleted rows that a living row has in this snapshot: an active row wins."""
        keys: dict[bytes, KeyParts | None] = {}
        for row in rows:
            if row[self.phase] in _LOGGED or (row[self.phase] == _DEACTIVATED and not self._id_is_key):
                with suppress(RowError):  # no record is made of it
                    if (key := self._plan.rows.render_key(row)) is not None:
                        keys[key] = self._plan.rows.key_columns_of(row)
        if not keys or not self._plan.rows.key_columns:
            return set()
        try:
            return self._living_rows.among(keys)
        except RowError:  # the removal guard fails in the same way, and keeps the records
            return set()
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            if self._plan.sweeps and any(row[self.phase] in _LOGGED for row in rows):
                raise LogUnreadable(
                    refusal(error)
                ) from error  # the key's type no longer accepts the deleted row's value
            raise


def logged_columns(plan: TablePlan) -> tuple[list[str], sql.Composable]:
    """Return the columns that a logged row's tombstone needs, and the plan's columns with NULL for the others."""
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
    """Return positions and names of columns whose schema allows no null, unless Postgres ensures that.

    The columns of a query have the NOT NULL of their tables, whatever its joins do; a foreign server promises nothing.
    The real connector's task fails on such a row.
    """
    if plan.kind not in {RelationKind.QUERY, RelationKind.FOREIGN_TABLE}:
        return []
    fixed = {column.name for column in plan.rows.table.columns if column.not_null}
    return [(position, name) for position, name in enumerate(plan.rows.columns) if name in fixed]


def _text(raw: bytes | None) -> str:
    return "NULL" if raw is None else raw.decode(errors="replace")
