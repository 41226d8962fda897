"""A sink's handler that writes rows: COPY into a temporary table, and one statement that merges it.

Of the records of a key in a batch the newest is written, where the mode allows it. What Postgres refuses is looked for
by the line that COPY names, and for what the merge refuses in halves (see `applying`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from compactory.errors import ConfigError
from compactory_connectors.database.postgres_errors import refusal

from ..failure import RecordRefused
from ..record import Records, SinkRecord
from .chain import Chain
from .decoding import Decoded
from .plan import Plan, Row, Wanted, columns_of, plan_of
from .sink_config import SinkConfig
from .statements import add_columns, create_table, delete, merge, staging
from .target import Target, read_target

__all__ = ["TableWriter"]

_LINE = re.compile(r"^COPY \S+, line (\d+)", re.MULTILINE)
Written: TypeAlias = tuple[SinkRecord, Row]
_PIECE = 100  # rows of a COPY where one before was refused


class TableWriter:
    """Implements the handler of `TransactionalSink`. Owned by the thread of one connection at a time."""

    def __init__(self, config: SinkConfig) -> None:
        self.config = config
        self._chain = Chain(config.transforms) if config.transforms else None
        self._wants_key = config.pk_mode == "record_key" or bool(config.transforms)
        self._plans: dict[Any, tuple[Plan, Any]] = {}

    def __call__(self, connection: psycopg.Connection[Any], records: Records) -> None:
        """Write a batch. Raises RecordRefused, psycopg.Error, ConfigError."""
        try:
            _Writing(self, connection, records).run()
        except Exception:
            self._plans.clear()  # the transaction that made tables or columns is rolled back
            raise

    def placed(self, connection: psycopg.Connection[Any], record: SinkRecord) -> tuple[Plan, Row] | None:
        """Where a record is written, and its row; None: a Filter drops it. Raises RecordRefused.

        Creates or changes the table where that is wanted.
        """
        topic, key, value = record.topic, None, None
        if self._wants_key and record.key is not None:
            key = self.config.key(record.key, topic, "key")
        if record.value is not None:
            value = self.config.value(record.value, topic, "value")
            if value.value is None:
                value = None
        if self._chain is not None:
            change = self._chain.apply(topic, key, value)
            if change is None:
                return None
            topic, key, value = change
        shape = topic, _shape(key), _shape(value)
        if shape not in self._plans:
            if len(self._plans) > 1000:
                self._plans.clear()
            schemas = key and key.schema, value and value.schema  # kept, so that no other has their id
            self._plans[shape] = self._made(connection, topic, key, value), schemas
        plan = self._plans[shape][0]
        return plan, plan.row(record, key and key.value, value and value.value)

    def _made(
        self, connection: psycopg.Connection[Any], topic: str, key: Decoded | None, value: Decoded | None
    ) -> Plan:
        wanted, primary = columns_of(self.config, key, value)
        name = self.config.table_format.replace("${topic}", topic)
        target = read_target(connection, name)
        if target is None:
            target = self._create(connection, name, wanted, primary)
        missing = {column: source for column, source in wanted.items() if column not in target.columns}
        if missing:
            target = self._evolve(connection, target, missing)
        return plan_of(target, wanted, primary, deletes=value is None)

    def _create(
        self, connection: psycopg.Connection[Any], name: str, wanted: Wanted, primary: tuple[str, ...]
    ) -> Target:
        if not self.config.auto_create:
            raise ConfigError(f"there is no table {name}: create it, or set auto.create=true")
        connection.execute(create_table(name, wanted, primary))
        target = read_target(connection, name)
        assert target is not None
        return target

    def _evolve(self, connection: psycopg.Connection[Any], target: Target, missing: Wanted) -> Target:
        names = ", ".join(missing)
        if not self.config.auto_evolve:
            raise RecordRefused(
                f"table {target.text} has no column for {names}: add it, set auto.evolve=true, or leave the field out"
                " by fields.whitelist"
            )
        connection.execute(add_columns(target, missing))
        found = read_target(connection, target.text)
        assert found is not None
        return found


def _shape(half: Decoded | None) -> Any:
    """What a plan depends on: a schema, by its id, or the names of fields."""
    if half is None:
        return None
    schema, value = half
    if schema is not None:
        return id(schema)
    return tuple(value) if value.__class__ is dict else value.__class__


class _Writing:
    """One call: rows are gathered by plan, and written where order asks for it and at the end."""

    def __init__(self, writer: TableWriter, connection: psycopg.Connection[Any], records: Records) -> None:
        self._placed = writer.placed
        self._mode = writer.config.insert_mode
        self._deletes = writer.config.delete
        self._connection = connection
        self._records = records
        self._rows: dict[Plan, list[Written]] = defaultdict(list)
        self._newest: dict[Any, tuple[Plan, Written]] = {}
        self._deleted: dict[Any, tuple[Plan, Written]] = {}
        self._replaced = False
        self._used: set[str] = set()

    def run(self) -> None:
        failed, waits, take = self._records.failed, self._records.waits, self._take
        for record in self._records:
            if failed and waits(record):
                continue
            try:
                take(record)
            except RecordRefused as error:
                self._records.set_aside(record, str(error))
            except (TypeError, ValueError, AttributeError, KeyError, OverflowError):
                self._records.set_aside(record, "a field does not fit its schema or its column")
        self._flush()

    def _take(self, record: SinkRecord) -> None:
        placed = self._placed(self._connection, record)
        if placed is None:
            return
        plan, row = placed
        place = (plan.target.text, *row[: len(plan.key)])
        if plan.deletes:
            self._take_tombstone(place, plan, record, row)
        elif self._mode == "insert":
            if place in self._deleted:
                self._flush()
            self._rows[plan].append((record, row))
        else:
            before = self._newest.get(place)
            if place in self._deleted or (before is not None and before[0] is not plan):
                self._flush()  # the older row has to be there, or to be gone, first
            elif before is not None:
                self._replaced = True
            self._newest[place] = plan, (record, row)

    def _take_tombstone(self, place: Any, plan: Plan, record: SinkRecord, row: Row) -> None:
        if not self._deletes:
            raise RecordRefused("is a tombstone, and delete.enabled is false")
        if self._mode == "insert" and self._rows:
            self._flush()
        self._newest.pop(place, None)
        self._deleted[place] = plan, (record, row)

    def _flush(self) -> None:
        deleted: dict[Plan, list[Written]] = defaultdict(list)
        for plan, written in self._deleted.values():
            deleted[plan].append(written)
        for plan, rows in deleted.items():
            self._write(plan, rows, delete(plan.target, plan.key))
        for plan, written in self._newest.values():
            self._rows[plan].append(written)
        for plan, rows in self._rows.items():
            self._write(plan, rows, merge(self._mode, plan))
        self._rows.clear()
        self._newest.clear()
        self._deleted.clear()

    def _write(self, plan: Plan, rows: Sequence[Written], statement: sql.Composed) -> None:
        name = self._staging(plan)
        for record, reason in self._copy(name, plan, rows):
            if self._replaced:  # an older record of the key may have to be written in its place
                raise RecordRefused(reason)
            self._records.set_aside(record, reason)
        self._connection.execute(statement_of(statement, name))

    def _staging(self, plan: Plan) -> str:
        """An empty temporary table with the columns of the plan."""
        name = staging(plan)
        if name in self._used:
            self._connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier("pg_temp", name)))
        else:
            self._used.add(name)
            found = self._connection.execute("SELECT to_regclass(%s)", [f'pg_temp."{name}"']).fetchone()
            if found is None or found[0] is None:
                self._create_staging(name, plan)
        return name

    def _create_staging(self, name: str, plan: Plan) -> None:
        columns = sql.SQL(", ").join(map(sql.Identifier, plan.columns))
        self._connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DELETE ROWS AS SELECT {} FROM {} WITH NO DATA").format(
                sql.Identifier(name), columns, plan.target.name
            )
        )
        needed = [column for column in plan.columns if plan.target.columns[column].not_null]
        if needed:
            alter = [sql.SQL("ALTER {} SET NOT NULL").format(sql.Identifier(column)) for column in needed]
            self._connection.execute(
                sql.SQL("ALTER TABLE pg_temp.{} {}").format(sql.Identifier(name), sql.SQL(", ").join(alter))
            )

    def _copy(self, name: str, plan: Plan, rows: Sequence[Written]) -> Iterator[tuple[SinkRecord, str]]:
        """Fill the temporary table; yield what Postgres refuses of it, with the reason."""
        size = len(rows)
        start = 0
        while start < len(rows):
            piece = rows[start : start + size]
            try:
                self._copy_piece(name, plan, piece)
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                line = _LINE.search(error.diag.context or "")
                if line is None:
                    raise
                number = int(line[1])
                self._copy_piece(name, plan, piece[: number - 1])
                yield piece[number - 1][0], refusal(error)
                start += number
                size = _PIECE
            else:
                start += len(piece)

    def _copy_piece(self, name: str, plan: Plan, rows: Sequence[Written]) -> None:
        if not rows:
            return
        columns = sql.SQL(", ").join(map(sql.Identifier, plan.columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier("pg_temp", name), columns)
        with self._connection.transaction(), self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for _, row in rows:
                copy.write_row(row)


def statement_of(statement: sql.Composed, name: str) -> sql.Composed:
    """A merge with the name of the temporary table filled in."""
    return sql.SQL("WITH staged AS (SELECT * FROM {}) ").format(sql.Identifier("pg_temp", name)) + statement
