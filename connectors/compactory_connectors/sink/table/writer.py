"""A sink's handler that writes rows: COPY into a temporary table, and one statement that merges it.

Of the records of a key in a batch the newest is written, where the mode allows it. A record at fault is found while
its row is made, by the line that COPY names, or by halves where the merge refuses it (see `applying`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import groupby, repeat
from operator import itemgetter
from threading import Lock
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql

from compactory.errors import ConfigError
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Kafka
from compactory_connectors.database.postgres_errors import refusal

from ..record import RecordRefused, Records
from ..sink import TransactionalSink
from ..starting import Start
from .chain import Chain, Change
from .decoding import Decoded
from .gathering import Gathering, Write
from .plan import NOT_FITTING, Plan, Row, columns_of, plan_of
from .sink_config import SinkConfig
from .statements import add_columns, create_staging, create_table, staging
from .target import Target, read_target

__all__ = ["TableWriter", "table_sink"]

_LINE = re.compile(r"^COPY \S+, line (\d+)", re.MULTILINE)
_PIECE = 100  # rows of a COPY where one before was refused


class _Unknown(Exception):
    """A record's table has to be looked at first."""


class _Alike(NamedTuple):
    """Records of one shape: their places, the first, and the keys and values of all."""

    numbers: list[int]
    first: Change
    keys: list[Any]
    values: list[Any]


class TableWriter:
    """Implements the handler of `TransactionalSink`, for one connection at a time."""

    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._chain = Chain(config.transforms) if config.transforms else None
        self._wants_key = config.pk_mode == "record_key" or bool(config.transforms)
        self._plans: dict[Any, tuple[Plan, Change]] = {}
        self._changed = False
        self._lock = Lock()  # guards decoders, transforms and plans

    def prepare(self, records: Records) -> None:
        """Make rows of records whose tables are known. Thread-safe. Raises CompactoryError."""
        try:
            records.prepared = self.writes(None, records)
        except _Unknown:
            records.forget()

    def __call__(self, connection: psycopg.Connection[Any], records: Records) -> None:
        """Write a batch. Raises RecordRefused, psycopg.Error, ConfigError."""
        if self._changed:  # of what was made then, a roll-back may have left nothing
            self._plans.clear()
            self._changed = False
        for write in self.writes(connection, records) if records.prepared is None else records.prepared:
            _write(connection, records, write)

    def writes(self, connection: psycopg.Connection[Any] | None, records: Records) -> list[Write]:
        """What is to be written. Sets records aside; creates or changes tables where that is wanted."""
        with self._lock, collector_paused():  # rows come by the thousand, and hold no cycles
            refused: dict[int, str] = {}
            placed: list[tuple[int, Plan, Row]] = []
            alike = self._alike(records, refused)
            for shape, (numbers, change, keys, values) in alike.items():
                try:
                    plan = self._plan(connection, shape, change)
                except RecordRefused as error:
                    refused |= dict.fromkeys(numbers, str(error))
                    continue
                rows, unfit = plan.rows([records[number] for number in numbers], keys, values)
                refused |= {numbers[place]: reason for place, reason in unfit.items()}
                placed += zip(numbers, repeat(plan), rows)
            if len(alike) > 1:
                placed.sort(key=itemgetter(0))
            if refused:
                left = _settled(records, refused)
                placed = [item for item in placed if item[0] in left]
            gathering = Gathering(self._config.insert_mode)
            for plan, items in groupby(placed, key=itemgetter(1)):
                gathering.take(plan, [(records[number], row) for number, _, row in items])
            return gathering.writes()

    def _alike(self, records: Records, refused: dict[int, str]) -> dict[Any, _Alike]:
        """Records behind the transforms by their shape, and by place why some are refused."""
        raw_keys = [record.key if self._wants_key else None for record in records]
        keys = _each(self._config.key, raw_keys, refused)
        values = _each(self._config.value, [record.value for record in records], refused)
        values = [None if value is None or value[1] is None else value for value in values]
        topics: Sequence[str | None] = [record.topic for record in records]
        if (chain := self._chain) is not None:
            given = list(zip(topics, keys, values, strict=True))
            changes = [change or (None, None, None) for change in _each(lambda one: chain.apply(*one), given, refused)]
            topics, keys, values = ([change[half] for change in changes] for half in range(3))
        found: dict[Any, _Alike] = {}
        shapes = zip(topics, map(_shape, keys), map(_shape, values), strict=True)
        for number, (shape, key, value) in enumerate(zip(shapes, keys, values, strict=True)):
            if shape[0] is None or number in refused:  # a Filter drops it
                continue
            if shape not in found:
                found[shape] = _Alike([], Change(shape[0], key, value), [], [])
            numbers, _, its_keys, its_values = found[shape]
            numbers.append(number)
            its_keys.append(key and key[1])
            its_values.append(value and value[1])
        return found

    def _plan(self, connection: psycopg.Connection[Any] | None, shape: Any, change: Change) -> Plan:
        if shape not in self._plans:
            if connection is None:
                raise _Unknown
            if len(self._plans) > 1000:
                self._plans.clear()
            self._plans[shape] = self._made(connection, change), change  # kept, so that no other schema has its id
        return self._plans[shape][0]

    def _made(self, connection: psycopg.Connection[Any], change: Change) -> Plan:
        wanted, primary = columns_of(self._config, change)
        name = self._config.table_name_format.replace("${topic}", change.topic)
        target = read_target(connection, name)
        if target is None:
            if not self._config.auto_create:
                raise ConfigError(f"there is no table {name}: create it, or set auto.create=true")
            schemas = {column: source.schema for column, source in wanted.items()}
            target = self._altered(connection, name, create_table(name, schemas, primary))
        missing = {column: source.schema for column, source in wanted.items() if column not in target.columns}
        if missing and not self._config.auto_evolve:
            raise RecordRefused(
                f"table {name} has no column for {', '.join(missing)}: add it, set auto.evolve=true, or leave the field"
                " out by fields.whitelist"
            )
        if missing:
            target = self._altered(connection, name, add_columns(target, missing))
        return plan_of(self._config.insert_mode, target, wanted, primary, deletes=change.value is None)

    def _altered(self, connection: psycopg.Connection[Any], name: str, statement: sql.Composed) -> Target:
        self._changed = True
        connection.execute(statement)
        target = read_target(connection, name)
        assert target is not None
        return target


def _each(function: Callable[[Any], Any], items: Sequence[Any], refused: dict[int, str]) -> list[Any]:
    """The function's values of items that are not None; by place why some have none."""
    try:
        return [None if item is None else function(item) for item in items]
    except NOT_FITTING:
        pass
    found = []
    for number, item in enumerate(items):
        try:
            found.append(None if item is None or number in refused else function(item))
        except NOT_FITTING as error:
            found.append(None)
            refused[number] = str(error) if isinstance(error, RecordRefused) else "a field does not fit its schema"
    return found


def _shape(half: Decoded | None) -> Any:
    """What a plan depends on: a schema, by its id, or the names of fields."""
    if half is None:
        return None
    schema, value = half
    if schema is not None:
        return id(schema)
    return tuple(value) if value.__class__ is dict else value.__class__


def _settled(records: Records, refused: dict[int, str]) -> set[int]:
    """Set records aside that are refused, and those behind them; the places of the others."""
    left = set()
    for number, record in enumerate(records):
        if records.waits(record):
            continue
        if number in refused:
            records.set_aside(record, refused[number])
        else:
            left.add(number)
    return left


def _write(connection: psycopg.Connection[Any], records: Records, write: Write) -> None:
    """Fill the temporary table but for rows that Postgres refuses, and merge it.

    What was prepared is tried as it is: where Postgres refuses a row, the batch comes again without.
    """
    plan, left, size = write.plan, write.rows, len(write.rows)
    name = _staging(connection, plan)
    columns = sql.SQL(", ").join(map(sql.Identifier, plan.columns))
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier("pg_temp", name), columns)
    while left:
        piece, left = left[:size], left[size:]
        if records.failed:
            piece = [written for written in piece if not records.waits(written[0])]
        try:
            savepoint = nullcontext() if records.prepared else connection.transaction()
            with savepoint, connection.cursor() as cursor, cursor.copy(copy) as copying:
                for _, row in piece:
                    copying.write_row(row)
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.SyntaxError) as error:  # hstore's is the last
            line = _LINE.search(error.diag.context or "")
            if (
                line is None or write.replaced or records.prepared
            ):  # an older record of the key may have to be written in its place
                raise
            number, size = int(line[1]), _PIECE
            records.set_aside(piece[number - 1][0], refusal(error))
            left = piece[: number - 1] + piece[number:] + left
    staged = sql.SQL("WITH staged AS (SELECT * FROM {}) ").format(sql.Identifier("pg_temp", name))
    connection.execute(staged + plan.statement)


def _staging(connection: psycopg.Connection[Any], plan: Plan) -> str:
    """A temporary table with the columns of the plan, made once for a connection; emptied, as halves share it."""
    name = staging(plan.target, plan.columns)
    found = connection.execute("SELECT pg_relation_size(to_regclass(%s))", [f'pg_temp."{name}"']).fetchone()
    if found is None or found[0] is None:
        for statement in create_staging(name, plan.target, plan.columns):
            connection.execute(statement)
    elif found[0]:
        connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier("pg_temp", name)))
    return name


def table_sink(config: SinkConfig, kafka: Kafka) -> TransactionalSink:
    """The sink. Raises ConfigError."""
    one = TableWriter(config)
    others: WeakKeyDictionary[psycopg.Connection[Any], TableWriter] = WeakKeyDictionary()

    def write(connection: psycopg.Connection[Any], records: Records) -> None:
        writer = one if config.parallel == 1 else others.setdefault(connection, TableWriter(config))
        writer(connection, records)

    return TransactionalSink(
        kafka,
        config.connection,
        config.topics,
        write,
        name=config.name,
        group_id=config.consumer.get("group.id"),
        prepare=one.prepare,
        batch=config.batch_size,
        parallel=config.parallel,
        on_failure="set_aside" if config.errors_tolerance == "all" else "stop",
        dead_letters=config.dead_letters or None,
        dead_letter_headers=config.dead_letter_headers,
        start=cast("Start", config.start),
        properties=config.consumer,
    )
