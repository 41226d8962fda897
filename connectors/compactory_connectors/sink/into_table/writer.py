"""A sink's handler that writes rows: COPY into a temporary table, and one statement that merges it.

Many rows are first tried to be copied into the table itself, which takes half the time where all their keys are new.
Of the records of a key in a batch the newest is written, where the mode allows it. A record at fault is found while
its row is made, or by halves where Postgres refuses it (see `applying`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql

from compactory.errors import CompactoryError, ConfigError
from compactory.ingest.gc_tuning import collector_paused
from compactory.kafka.client import Kafka
from compactory_connectors.connect.converters.decoders import Decoded
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.postgres.postgres_errors import refusal

from ..offsets import Start
from ..record import RecordRefused, Records
from ..sink import TransactionalSink
from .chain import Chain, Change
from .plan import NOT_FITTING, Gathering, Plan, Row, Write, columns_of, plan_of
from .sink_config import SinkConfig
from .statements import add_columns, create_staging, create_table, staging
from .target import Target, read_target, table_identifier

__all__ = ["TableWriter", "table_sink"]

_MANY = 1000
"""Rows that are worth a try to copy them into the table itself."""
_LINES = 1000
"""Rows that are sent at once."""
_PAUSE = 8
"""Writes of many rows without such a try after one that Postgres refused; twice as many after the next."""


class _Unknown(Exception):
    """A record's table has to be looked at first."""


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
        if self._changed or records.again:  # a roll-back may have left nothing of it, or somebody has mended the table
            with self._lock:
                self._plans.clear()
            self._changed = False
        for write in self.writes(connection, records) if records.prepared is None else records.prepared:
            _write(connection, write, records.prepare_next)

    def writes(self, connection: psycopg.Connection[Any] | None, records: Records) -> list[Write]:
        """The batches to write. Sets records aside; creates or changes tables where the configuration allows it."""
        with self._lock, collector_paused():  # rows come by the thousand, and hold no cycles
            refused: dict[int, str] = {}
            placed: list[tuple[int, Plan, Row]] = []
            topics, keys, values = self._changes(records, refused)
            alike = _alike([*zip(topics, _shapes(keys), _shapes(values), strict=True)], refused)
            for shape, numbers in alike.items():
                first = numbers[0]
                try:
                    plan = self._plan(connection, shape, Change(shape[0], keys[first], values[first]))
                except RecordRefused as error:
                    refused |= dict.fromkeys(numbers, str(error))
                    continue
                halves = ([half[n] and half[n][1] for n in numbers] for half in (keys, values))
                rows, unfit = plan.rows([records[n] for n in numbers], *halves)
                refused |= {numbers[place]: reason for place, reason in unfit.items()}
                placed += zip(numbers, repeat(plan), rows)
            if len(alike) > 1:
                placed.sort(key=itemgetter(0))
            if refused:
                left = _settled(records, refused)
                placed = [item for item in placed if item[0] in left]
            gathering = Gathering(self._config.insert_mode)
            for plan, items in groupby(placed, key=itemgetter(1)):
                gathering.take(plan, [row for _, _, row in items])
            return gathering.writes()

    def _changes(self, records: Records, refused: dict[int, str]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Topics, keys and values behind the transforms, and by place why some records are refused."""
        keys: Sequence[Any] = [None] * len(records)
        if self._wants_key:
            keys = _each(self._config.key, [record.key for record in records], refused)
        values = _each(self._config.value, [record.value for record in records], refused)
        values = [None if value is None or value[1] is None else value for value in values]
        topics: Sequence[str | None] = [record.topic for record in records]
        if (chain := self._chain) is None:
            return topics, keys, values
        given = list(zip(topics, keys, values, strict=True))
        applied = _each(lambda some: [chain.apply(*one) for one in some], given, refused)
        changes = [change or (None,) * 3 for change in applied]
        return [one[0] for one in changes], [one[1] for one in changes], [one[2] for one in changes]

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
        try:
            identifier = table_identifier(name)
        except ValueError as error:
            raise ConfigError(f"table.name.format: {error}") from None
        target = read_target(connection, identifier, name)
        if target is None:
            if not self._config.auto_create:
                raise ConfigError(f"there is no table {name}: create it, or set auto.create=true")
            schemas = {column: source.schema for column, source in wanted.items()}
            target = self._altered(connection, identifier, name, create_table(identifier, schemas, primary))
        missing = {column: source.schema for column, source in wanted.items() if column not in target.columns}
        if missing and not self._config.auto_evolve:
            raise RecordRefused(
                f"table {name} has no column for {', '.join(missing)}: add it, set auto.evolve=true, or leave the field"
                " out by fields.whitelist"
            )
        if missing:
            target = self._altered(connection, identifier, name, add_columns(target, missing))
        wanted = {
            column: source for column, source in wanted.items() if column in primary or not target.columns[column].made
        }
        if not wanted:
            raise RecordRefused(f"has no field to write: table {name} makes the columns {', '.join(target.columns)}")
        return plan_of(self._config.insert_mode, target, wanted, primary, deletes=change.value is None)

    def _altered(
        self, connection: psycopg.Connection[Any], identifier: sql.Identifier, name: str, statement: sql.Composed
    ) -> Target:
        self._changed = True
        connection.execute(statement)
        target = read_target(connection, identifier, name)
        assert target is not None
        return target


def _each(function: Callable[[Any], Iterable[Any]], items: Sequence[Any], refused: dict[int, str]) -> list[Any]:
    """The function's results for the items that are not None, and by place why some items have none.

    It is tried with all items at once first.
    """
    found: list[Any] = [None] * len(items)
    places = [number for number, item in enumerate(items) if item is not None and number not in refused]
    if not places:
        return found
    try:
        if len(places) == len(items):
            return list(function(items))
        for number, made in zip(places, function([items[number] for number in places]), strict=True):
            found[number] = made
        return found
    except NOT_FITTING:
        pass
    for number in places:
        try:
            (found[number],) = function([items[number]])
        except NOT_FITTING as error:
            refused[number] = (
                str(error) if isinstance(error, RecordRefused | RowError) else "a field does not fit its schema"
            )
    return found


def _shape(half: Decoded | None) -> Any:
    """The key of a plan: a schema, by its id, or the names of fields."""
    if half is None:
        return None
    schema, value = half
    if schema is not None:
        return id(schema)
    return tuple(value) if value.__class__ is dict else value.__class__


def _shapes(halves: Sequence[Decoded | None]) -> Iterable[Any]:
    """The shape of each. That of JSON without a schema is that of the first where all have its fields."""
    first = halves[0]
    if first is None or None in halves:
        return map(_shape, halves)
    schemas, values = zip(*halves, strict=True)
    if len({*map(id, schemas)}) > 1 or (schemas[0] is None and {*map(type, values)} != {dict}):
        return map(_shape, halves)
    if schemas[0] is not None or all(map(first.value.keys().__eq__, map(dict.keys, values))):
        return repeat(_shape(first), len(halves))
    return map(_shape, halves)


def _alike(shapes: list[Any], refused: Mapping[int, str]) -> Mapping[Any, Sequence[int]]:
    """The places of records by their shapes, but for those that are refused or that a Filter drops."""
    if not refused and len({*shapes}) == 1 and shapes[0][0] is not None:
        return {shapes[0]: range(len(shapes))}
    found: dict[Any, list[int]] = defaultdict(list)
    for number, shape in enumerate(shapes):
        if shape[0] is not None and number not in refused:
            found[shape].append(number)
    return found


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
    """Return the column that COPY was at, by the context of its error; its words depend on the server's language."""
    context = error.diag.context or ""
    places = {name: context.find(f" {name}: ") for name in plan.columns}
    return min((name for name, place in places.items() if place >= 0), key=places.__getitem__, default=None)


def _merge(connection: psycopg.Connection[Any], write: Write, sent: Callable[[], object]) -> None:
    plan, lines = write
    table = _staging(connection, plan)
    merge = sql.SQL("WITH staged AS (SELECT * FROM {}) ").format(table) + plan.statement
    if plan.copies and len(lines) >= _MANY:
        if plan.pause == 0 and _copied_straight(connection, write, merge, sent):
            return
        plan.pause -= 1
    _copy(connection, table, write, sent)
    connection.execute(merge)


def _copied_straight(
    connection: psycopg.Connection[Any], write: Write, merge: sql.Composed, sent: Callable[[], object]
) -> bool:
    """Whether the table itself took all rows: not where it has one of their keys, or where COPY is not possible.

    The merge of no rows shows that the key is unique, that the role may merge, and that no rule is passed over.
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
    """A temporary table with the columns of the plan, made once for a connection; emptied, as halves share it."""
    name = staging(plan.target, plan.columns)
    table = sql.Identifier("pg_temp", name)
    found = connection.execute("SELECT pg_relation_size(to_regclass(%s))", [f'pg_temp."{name}"']).fetchone()
    if found is None or found[0] is None:
        connection.execute(create_staging(name, plan.target, plan.columns))
    elif found[0]:
        connection.execute(sql.SQL("TRUNCATE {}").format(table))
    return table


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
        dedupe=config.dedupe,
        start=cast("Start", config.start),
        properties=config.consumer,
    )
