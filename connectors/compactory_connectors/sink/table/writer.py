"""A sink's handler that writes rows: COPY into a temporary table, and one statement that merges it.

Of the records of a key in a batch the newest is written, where the mode allows it. What Postgres refuses is looked for
by the line that COPY names, and for what the merge refuses in halves (see `applying`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

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
_PIECE = 100  # rows of a COPY where one before was refused


class TableWriter:
    """Implements the handler of `TransactionalSink`. Owned by the thread of one connection at a time."""

    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._chain = Chain(config.transforms)
        self._plans: dict[Any, Plan] = {}
        self._staged: dict[tuple[str, tuple[str, ...]], str] = {}

    def __call__(self, connection: psycopg.Connection[Any], records: Records) -> None:
        """Write a batch. Raises RecordRefused, psycopg.Error, ConfigError."""
        try:
            _Writing(self, connection, records).run()
        except Exception:
            self._plans.clear()  # the transaction that made tables or columns is rolled back
            raise

    def decoded(self, record: SinkRecord) -> tuple[str, Decoded | None, Decoded | None] | None:
        """Topic, key and value behind the transforms; None: a Filter drops it. Raises RecordRefused."""
        wants_key = self._config.pk_mode == "record_key" or bool(self._config.transforms)
        key = self._config.key(record.key, record.topic, "key") if wants_key and record.key is not None else None
        value = None if record.value is None else self._config.value(record.value, record.topic, "value")
        if value is not None and value.value is None:
            value = None
        return self._chain.apply(record.topic, key, value)

    def plan(self, connection: psycopg.Connection[Any], topic: str, key: Decoded | None, value: Decoded | None) -> Plan:
        """How such a record is written. Creates or changes the table where that is wanted."""
        shape = topic, _shape(key), _shape(value)
        found = self._plans.get(shape)
        if found is None:
            if len(self._plans) > 1000:
                self._plans.clear()
            found = self._plans[shape] = self._made(connection, topic, key, value)
        return found

    def _made(
        self, connection: psycopg.Connection[Any], topic: str, key: Decoded | None, value: Decoded | None
    ) -> Plan:
        wanted, primary = columns_of(self._config, key, value)
        name = self._config.table_format.replace("${topic}", topic)
        target = read_target(connection, name)
        if target is None:
            target = self._create(connection, name, wanted, primary)
        missing = {column: source for column, source in wanted.items() if column not in target.columns}
        if missing:
            target = self._evolve(connection, target, missing)
        return plan_of(target, wanted, primary)

    def _create(
        self, connection: psycopg.Connection[Any], name: str, wanted: Wanted, primary: tuple[str, ...]
    ) -> Target:
        if not self._config.auto_create:
            raise ConfigError(f"there is no table {name}: create it, or set auto.create=true")
        connection.execute(create_table(name, wanted, primary))
        target = read_target(connection, name)
        assert target is not None
        return target

    def _evolve(self, connection: psycopg.Connection[Any], target: Target, missing: Wanted) -> Target:
        names = ", ".join(missing)
        if not self._config.auto_evolve:
            raise RecordRefused(
                f"table {target.text} has no column for {names}: add it, set auto.evolve=true, or leave the field out"
                " by fields.whitelist"
            )
        connection.execute(add_columns(target, missing))
        found = read_target(connection, target.text)
        assert found is not None
        return found

    @property
    def config(self) -> SinkConfig:
        """What it was made with."""
        return self._config


def _shape(half: Decoded | None) -> Any:
    if half is None:
        return None
    if half.schema is not None:
        return half.schema
    return tuple(half.value) if isinstance(half.value, dict) else type(half.value)


class _Writing:
    """One call: rows are gathered by plan, and written where order asks for it and at the end."""

    def __init__(self, writer: TableWriter, connection: psycopg.Connection[Any], records: Records) -> None:
        self._writer = writer
        self._config = writer.config
        self._connection = connection
        self._records = records
        self._rows: dict[Plan, list[tuple[SinkRecord, Row]]] = {}
        self._newest: dict[tuple[str, Row], tuple[Plan, SinkRecord, Row]] = {}
        self._deleted: dict[tuple[str, Row], tuple[Plan, SinkRecord]] = {}
        self._replaced = False
        self._used: set[str] = set()

    def run(self) -> None:
        for record in self._records:
            if self._records.waits(record):
                continue
            try:
                self._take(record)
            except RecordRefused as error:
                self._records.set_aside(record, str(error))
            except (TypeError, ValueError, AttributeError, KeyError, OverflowError):
                self._records.set_aside(record, "a field does not fit its schema or its column")
        self._flush()

    def _take(self, record: SinkRecord) -> None:
        change = self._writer.decoded(record)
        if change is None:
            return
        topic, key, value = change
        if value is None:
            self._take_tombstone(record, topic, key)
            return
        plan = self._writer.plan(self._connection, topic, key, value)
        row = plan.row(record, key.value if key else None, value.value)
        if self._config.insert_mode == "insert":
            if self._deleted and (plan.target.text, row[: len(plan.key)]) in self._deleted:
                self._flush()
            self._rows.setdefault(plan, []).append((record, row))
            return
        place = plan.target.text, row[: len(plan.key)]
        before = self._newest.get(place)
        if place in self._deleted or (before is not None and before[0] is not plan):
            self._flush()  # the older row has to be there, or to be gone, first
        elif before is not None:
            self._replaced = True
        self._newest[place] = plan, record, row

    def _take_tombstone(self, record: SinkRecord, topic: str, key: Decoded | None) -> None:
        if not self._config.delete:
            raise RecordRefused("is a tombstone, and delete.enabled is false")
        plan = self._writer.plan(self._connection, topic, key, None)
        row = plan.row(record, key.value if key else None, {})
        place = plan.target.text, row
        if self._config.insert_mode == "insert" and self._rows:
            self._flush()
        self._newest.pop(place, None)
        self._deleted[place] = plan, record

    def _flush(self) -> None:
        deleted: dict[Plan, list[tuple[SinkRecord, Row]]] = {}
        for (_, row), (plan, record) in self._deleted.items():
            deleted.setdefault(plan, []).append((record, row))
        for plan, rows in deleted.items():
            self._write(plan, rows, delete(plan.target, plan.key))
        for plan, record, row in self._newest.values():
            self._rows.setdefault(plan, []).append((record, row))
        for plan, rows in self._rows.items():
            self._write(plan, rows, merge(self._config.insert_mode, plan))
        self._rows.clear()
        self._newest.clear()
        self._deleted.clear()

    def _write(self, plan: Plan, rows: Sequence[tuple[SinkRecord, Row]], statement: sql.Composed) -> None:
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

    def _copy(self, name: str, plan: Plan, rows: Sequence[tuple[SinkRecord, Row]]) -> Iterator[tuple[SinkRecord, str]]:
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

    def _copy_piece(self, name: str, plan: Plan, rows: Sequence[tuple[SinkRecord, Row]]) -> None:
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
