"""The handler of ``compactory sink run``: COPY into a temporary table, and one statement that merges it.

Many rows are copied into the table itself first, which takes half the time if all keys are new. Of the records of a key
in a batch only the newest is written, if the mode allows it. A record at fault is found while its row is made, or in
halves if Postgres refuses it (see `applying`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from threading import Lock
from typing import Any, cast

import psycopg
from psycopg import sql

from compactory.errors import CompactoryError, ConfigError
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Kafka
from compactory_connectors.connect.converters.decoders import Decoded
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.postgres.postgres_errors import refusal

from ..locator import Start
from ..record import RecordRefused, Records
from ..sink import TransactionalSink
from .plan import NOT_FITTING, DecodedRecord, Plan, Row, RowCollector, Write, columns_of, plan_of
from .sink_config import SinkConfig
from .statements import add_columns, create_staging, create_table, staging
from .target import Target, read_target, table_identifier

__all__ = ["TableWriter", "table_sink"]

_MANY = 1000
"""Rows from which on a copy into the table itself is tried."""
_LINES = 1000
"""Rows that are sent together."""
_PAUSE = 8
"""Writes without such a copy after a refused one; twice as many after the next refused one."""


class _UnknownTable(Exception):
    """The table of a record was not read yet."""


class TableWriter:
    """Implements the handler of `TransactionalSink`, for one connection at a time."""

    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._plans: dict[Any, tuple[Plan, DecodedRecord]] = {}
        self._has_altered = False
        self._lock = Lock()  # guards decoders and plans

    def prepare(self, records: Records) -> None:
        """Make rows of records whose tables are known. Thread-safe. Raises CompactoryError."""
        try:
            records.prepared = self.writes(None, records)
        except _UnknownTable:
            records.forget()

    def __call__(self, connection: psycopg.Connection[Any], records: Records) -> None:
        """Write a batch. Raises RecordRefused, psycopg.Error, ConfigError."""
        if self._has_altered or records.is_retry:  # the change may be rolled back, or somebody has repaired the table
            with self._lock:
                self._plans.clear()
            self._has_altered = False
        for write in self.writes(connection, records) if records.prepared is None else records.prepared:
            _write(connection, write, records.prepare_next)

    def writes(self, connection: psycopg.Connection[Any] | None, records: Records) -> list[Write]:
        """Return the rows to write. Sets records aside. Creates or alters tables if the configuration allows it."""
        with self._lock, collector_paused():  # rows come by the thousand, and have no cycles
            refused: dict[int, str] = {}
            placed: list[tuple[int, Plan, Row]] = []
            keys, values = self._decoded(records, refused)
            by_shape = _by_shape([*zip(_shapes(keys), _shapes(values), strict=True)], refused)
            for shape, numbers in by_shape.items():
                first = numbers[0]
                try:
                    plan = self._plan(
                        connection, shape, DecodedRecord(records[first].topic, keys[first], values[first])
                    )
                except RecordRefused as error:
                    refused |= dict.fromkeys(numbers, str(error))
                    continue
                halves = ([half[n] and half[n][1] for n in numbers] for half in (keys, values))
                rows, unfit = plan.rows([records[n] for n in numbers], *halves)
                refused |= {numbers[place]: reason for place, reason in unfit.items()}
                placed += zip(numbers, repeat(plan), rows)
            if len(by_shape) > 1:
                placed.sort(key=itemgetter(0))
            if refused:
                accepted = _set_aside(records, refused)
                placed = [item for item in placed if item[0] in accepted]
            collector = RowCollector(self._config.insert_mode)
            for plan, items in groupby(placed, key=itemgetter(1)):
                collector.add(plan, [row for _, _, row in items])
            return collector.writes()

    def _decoded(self, records: Records, refused: dict[int, str]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return keys and values. Adds the reasons of refused records by index."""
        keys: Sequence[Any] = [None] * len(records)
        if self._config.pk_mode == "record_key":
            keys = _each(self._config.key, [record.key for record in records], refused)
        values = _each(self._config.value, [record.value for record in records], refused)
        return keys, [None if value is None or value[1] is None else value for value in values]

    def _plan(self, connection: psycopg.Connection[Any] | None, shape: Any, record: DecodedRecord) -> Plan:
        if (shape := (record.topic, shape)) not in self._plans:
            if connection is None:
                raise _UnknownTable
            if len(self._plans) > 1000:
                self._plans.clear()
            # with the record: the id of a schema that is gone could be used again
            self._plans[shape] = self._make_plan(connection, record), record
        return self._plans[shape][0]

    def _make_plan(self, connection: psycopg.Connection[Any], record: DecodedRecord) -> Plan:
        sources, primary = columns_of(self._config, record)
        name = self._config.table_name_format.replace("${topic}", record.topic)
        try:
            identifier = table_identifier(name)
        except ValueError as error:
            raise ConfigError(f"table.name.format: {error}") from None
        target = read_target(connection, identifier, name)
        if target is None:
            if not self._config.auto_create:
                raise ConfigError(f"there is no table {name}: create it, or set auto.create=true")
            schemas = {column: source.schema for column, source in sources.items()}
            target = self._alter(connection, identifier, name, create_table(identifier, schemas, primary))
        missing = {column: source.schema for column, source in sources.items() if column not in target.columns}
        if missing and not self._config.auto_evolve:
            raise RecordRefused(
                f"table {name} has no column for {', '.join(missing)}: add it, set auto.evolve=true, or leave the field"
                " out by fields.whitelist"
            )
        if missing:
            target = self._alter(connection, identifier, name, add_columns(target, missing))
        sources = {
            column: source
            for column, source in sources.items()
            if column in primary or not target.columns[column].generated
        }
        if not sources:
            raise RecordRefused(f"has no field to write: table {name} makes the columns {', '.join(target.columns)}")
        return plan_of(self._config.insert_mode, target, sources, primary, deletes=record.value is None)

    def _alter(
        self, connection: psycopg.Connection[Any], identifier: sql.Identifier, name: str, statement: sql.Composed
    ) -> Target:
        self._has_altered = True
        connection.execute(statement)
        target = read_target(connection, identifier, name)
        assert target is not None
        return target


def _each(function: Callable[[Any], Iterable[Any]], items: Sequence[Any], refused: dict[int, str]) -> list[Any]:
    """Return the function's result of each item that is not None. Adds the reasons of refused items by index.

    Calls the function with all items first, and item by item after an error.
    """
    results: list[Any] = [None] * len(items)
    indexes = [number for number, item in enumerate(items) if item is not None and number not in refused]
    if not indexes:
        return results
    try:
        if len(indexes) == len(items):
            return list(function(items))
        for number, result in zip(indexes, function([items[number] for number in indexes]), strict=True):
            results[number] = result
        return results
    except NOT_FITTING:
        pass
    for number in indexes:
        try:
            (results[number],) = function([items[number]])
        except NOT_FITTING as error:
            refused[number] = (
                str(error) if isinstance(error, RecordRefused | RowError) else "a field does not fit its schema"
            )
    return results


def _shape(half: Decoded | None) -> Any:
    """Return the key of a plan: the id of a schema, or the names of fields."""
    if half is None:
        return None
    schema, value = half
    if schema is not None:
        return id(schema)
    return tuple(value) if value.__class__ is dict else value.__class__


def _shapes(halves: Sequence[Decoded | None]) -> Iterable[Any]:
    """Return the shape of each half. Compares the fields of JSON without a schema with those of the first."""
    first = halves[0]
    if first is None or None in halves:
        return map(_shape, halves)
    schemas, values = zip(*halves, strict=True)
    if len({*map(id, schemas)}) > 1 or (schemas[0] is None and {*map(type, values)} != {dict}):
        return map(_shape, halves)
    if schemas[0] is not None or all(map(first.value.keys().__eq__, map(dict.keys, values))):
        return repeat(_shape(first), len(halves))
    return map(_shape, halves)


def _by_shape(shapes: list[Any], refused: Mapping[int, str]) -> Mapping[Any, Sequence[int]]:
    """Return the indexes of records by shape, without refused records."""
    if not refused and len({*shapes}) == 1:
        return {shapes[0]: range(len(shapes))}
    indexes: dict[Any, list[int]] = defaultdict(list)
    for number, shape in enumerate(shapes):
        if number not in refused:
            indexes[shape].append(number)
    return indexes


def _set_aside(records: Records, refused: dict[int, str]) -> set[int]:
    """Set refused records aside, and later records of their keys. Return the indexes of the others."""
    accepted = set()
    for number, record in enumerate(records):
        if records.waits(record):
            continue
        if number in refused:
            records.set_aside(record, refused[number])
        else:
            accepted.add(number)
    return accepted


def _write(connection: psycopg.Connection[Any], write: Write, sent: Callable[[], object]) -> None:
    """Write the rows of one plan. Raises RecordRefused, psycopg.Error, CompactoryError that names the table."""
    try:
        _merge(connection, write, sent)
    except psycopg.DataError as error:
        column = _column_of(error, write.plan)
        if column is None:
            raise
        kind = write.plan.target.columns[column].kind
        raise RecordRefused(f"column {column} of type {kind}: {refusal(error)}") from error
    except psycopg.ProgrammingError as error:
        if isinstance(error, psycopg.errors.InsufficientPrivilege) or not (error.sqlstate or "").startswith("42"):
            raise
        table, key = write.plan.target, ", ".join(write.plan.key)
        remedy = "compare its columns with the fields of the records"
        if isinstance(error, psycopg.errors.InvalidColumnReference):
            remedy = f"the key of pk.fields must be unique: ALTER TABLE {table.text} ADD PRIMARY KEY ({key})"
        raise CompactoryError(f"table {table.text}: {refusal(error)}; {remedy}") from error


def _column_of(error: psycopg.Error, plan: Plan) -> str | None:
    """Return the column of a COPY error, by the context of the error. The server's language does not matter."""
    context = error.diag.context or ""
    places = {name: context.find(f" {name}: ") for name in plan.columns}
    return min((name for name, place in places.items() if place >= 0), key=places.__getitem__, default=None)


def _merge(connection: psycopg.Connection[Any], write: Write, sent: Callable[[], object]) -> None:
    plan, lines = write
    table = _staging(connection, plan)
    merge = sql.SQL("WITH staged AS (SELECT * FROM {}) ").format(table) + plan.statement
    if plan.copies and len(lines) >= _MANY:
        if plan.pause == 0 and _copy_into_table(connection, write, merge, sent):
            return
        plan.pause -= 1
    _copy(connection, table, write, sent)
    connection.execute(merge)


def _copy_into_table(
    connection: psycopg.Connection[Any], write: Write, merge: sql.Composed, sent: Callable[[], object]
) -> bool:
    """Copy rows into the table itself. Return False if it has one of the keys, or if COPY is not possible.

    The merge of no rows shows that the key is unique, that the role may merge, and that no rule is skipped.
    """
    try:
        with connection.transaction():
            connection.execute(merge)
            _copy(connection, write.plan.target.name, write, sent)
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        write.plan.refused += 1
        write.plan.pause = _PAUSE * 2 ** min(write.plan.refused, 10)
        return False
    return True


def _copy(connection: psycopg.Connection[Any], table: sql.Identifier, write: Write, sent: Callable[[], object]) -> None:
    lines, columns = write.lines, sql.SQL(", ").join(map(sql.Identifier, write.plan.columns))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table, columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copying:
        for start in range(0, len(lines), _LINES):
            copying.write("\n".join([*lines[start : start + _LINES], ""]))
        sent()


def _staging(connection: psycopg.Connection[Any], plan: Plan) -> sql.Identifier:
    """Return an empty temporary table with the columns of the plan. Each connection has one for a plan."""
    name = staging(plan.target, plan.columns)
    table = sql.Identifier("pg_temp", name)
    size = connection.execute("SELECT pg_relation_size(to_regclass(%s))", [f'pg_temp."{name}"']).fetchone()
    if size is None or size[0] is None:
        connection.execute(create_staging(name, plan.target, plan.columns))
    elif size[0]:
        connection.execute(sql.SQL("TRUNCATE {}").format(table))
    return table


def table_sink(config: SinkConfig, kafka: Kafka) -> TransactionalSink:
    """Return the sink of a configuration. Raises ConfigError."""
    writer = TableWriter(config)
    return TransactionalSink(
        kafka,
        config.connection,
        config.topics,
        writer,
        name=config.name,
        group_id=config.consumer.get("group.id"),
        prepare=writer.prepare,
        batch=config.batch_size,
        on_failure="set_aside" if config.errors_tolerance == "all" else "stop",
        start=cast("Start", config.start),
        properties=config.consumer,
    )
