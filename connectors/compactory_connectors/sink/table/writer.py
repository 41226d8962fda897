"""A sink's handler that writes rows: COPY into a temporary table, and one statement that merges it.

Of the records of a key in a batch the newest is written, where the mode allows it. What Postgres refuses is looked for
by the line that COPY names, and for what the merge refuses in halves (see `applying`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any

import psycopg
from psycopg import sql

from compactory.errors import ConfigError
from compactory.ingest.gc_tuning import collector_paused
from compactory_connectors.database.postgres_errors import refusal

from ..failure import RecordRefused
from ..record import Records, SinkRecord
from .chain import Chain
from .decoding import Decoded
from .gathering import NOT_FITTING, Gathering, Placed, Write, Written, write_of
from .plan import Plan, Wanted, columns_of, plan_of
from .sink_config import SinkConfig
from .statements import add_columns, create_staging, create_table, staging
from .target import Target, read_target

__all__ = ["TableWriter"]

_LINE = re.compile(r"^COPY \S+, line (\d+)", re.MULTILINE)
_PIECE = 100  # rows of a COPY where one before was refused


class _Unknown(Exception):
    """A record's table has to be looked at first."""


class TableWriter:
    """Implements the handler of `TransactionalSink`, for one connection at a time."""

    def __init__(self, config: SinkConfig) -> None:
        self.config = config
        self._chain = Chain(config.transforms) if config.transforms else None
        self._wants_key = config.pk_mode == "record_key" or bool(config.transforms)
        self._plans: dict[Any, tuple[Plan, Any]] = {}
        self._changed = False
        self._lock = Lock()  # guards decoders, transforms and plans

    def prepare(self, records: Records) -> None:
        """Make rows of records whose tables are known. Thread-safe. Raises CompactoryError."""
        try:
            records.prepared = self._gathered(None, records)
        except _Unknown:
            records.forget()

    def __call__(self, connection: psycopg.Connection[Any], records: Records) -> None:
        """Write a batch. Raises RecordRefused, psycopg.Error, ConfigError."""
        if self._changed:  # of what was made then, a roll-back may have left nothing
            self._plans.clear()
            self._changed = False
        writes = self._gathered(connection, records) if records.prepared is None else records.prepared
        for write in writes:
            _write(connection, records, write)

    def _gathered(self, connection: psycopg.Connection[Any] | None, records: Records) -> list[Write]:
        with self._lock, collector_paused():  # rows come by the thousand, and hold no cycles
            return self._alike(records) or Gathering(self.config, records, partial(self.placed, connection)).run()

    def _alike(self, records: Records) -> list[Write]:
        """The write of records of one shape that is known, all at a time; nothing where they are not so simple."""
        if not records or self._chain is not None:
            return []
        config, topic = self.config, records[0].topic
        try:
            values: list[Any] = [config.value(record.value, topic, "value") for record in records]  # type: ignore[arg-type]
            keys: list[Any] = [None] * len(records)
            if self._wants_key:
                keys = [config.key(record.key, topic, "key") for record in records]  # type: ignore[arg-type]
            shapes = set(zip(map(_shape, keys), map(_shape, values), strict=True))
            if len(shapes) > 1 or (topic, *shapes.pop()) not in self._plans:
                return []
            plan = self._plans[topic, _shape(keys[0]), _shape(values[0])][0]
            halves = [[half and half.value for half in part] for part in (keys, values)]
            return [write_of(config.insert_mode, plan, records, plan.rows(records, *halves))]
        except (RecordRefused, *NOT_FITTING):
            return []

    def placed(self, connection: psycopg.Connection[Any] | None, record: SinkRecord) -> Placed | None:
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
            if connection is None:
                raise _Unknown
            if len(self._plans) > 1000:
                self._plans.clear()
            schemas = key and key.schema, value and value.schema  # kept, so that no other has their id
            self._plans[shape] = self._made(connection, topic, key, value), schemas
        plan = self._plans[shape][0]
        return plan, plan.rows([record], [key and key.value], [value and value.value])[0]

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
        self._changed = True
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
        self._changed = True
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


def _write(connection: psycopg.Connection[Any], records: Records, write: Write) -> None:
    """Fill the temporary table but for rows that Postgres refuses, and merge it."""
    name, left, size = _staging(connection, write.plan), write.rows, len(write.rows)
    while left:
        piece, left = left[:size], left[size:]
        if records.failed:
            piece = [written for written in piece if not records.waits(written[0])]
        try:
            with connection.transaction():
                _copy(connection, name, write.plan, piece)
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.SyntaxError) as error:  # hstore's is the last
            line = _LINE.search(error.diag.context or "")
            if line is None or write.replaced:  # an older record of the key may have to be written in its place
                raise
            number, size = int(line[1]), _PIECE
            records.set_aside(piece[number - 1][0], refusal(error))
            left = piece[: number - 1] + piece[number:] + left
    connection.execute(statement_of(write.statement, name))


def _staging(connection: psycopg.Connection[Any], plan: Plan) -> str:
    """A temporary table with the columns of the plan, made once for a connection; emptied, as halves share it."""
    name = staging(plan)
    found = connection.execute("SELECT pg_relation_size(to_regclass(%s))", [f'pg_temp."{name}"']).fetchone()
    if found is None or found[0] is None:
        for statement in create_staging(name, plan):
            connection.execute(statement)
    elif found[0]:
        connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier("pg_temp", name)))
    return name


def _copy(connection: psycopg.Connection[Any], name: str, plan: Plan, rows: Sequence[Written]) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, plan.columns))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier("pg_temp", name), columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        write = copy.write_row
        for _, row in rows:
            write(row)


def statement_of(statement: sql.Composed, name: str) -> sql.Composed:
    """A merge with the name of the temporary table filled in."""
    return sql.SQL("WITH staged AS (SELECT * FROM {}) ").format(sql.Identifier("pg_temp", name)) + statement
