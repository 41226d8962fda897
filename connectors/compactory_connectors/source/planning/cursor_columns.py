"""The columns by which a table is read: the connector's choice, and the table's fitness for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compactory_connectors.connect.setting import nearest
from compactory_sql.naming import quoted

from ..config.connector import ConnectorConfig, CursorColumns
from ..config.selection import ColumnMapping, RelationKind
from ..postgres.catalog import Column, Table
from .table_plan import Reading

__all__ = ["CursorOf", "cursor_of", "reading_of"]

_INTEGERS: tuple[str, ...] = ("int8", "int4", "int2", "numeric", "oid")
_TIMESTAMPS: tuple[str, ...] = ("timestamp", "timestamptz")


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorOf:
    """The columns of one table by which it is read, and every problem with them."""

    timestamps: tuple[str, ...] = ()
    incrementing: str | None = None
    zoned: bool = False
    """The timestamps are points in time whatever the time zone."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    load_warnings: tuple[str, ...] = ()
    """Warnings about a first load alone."""


def reading_of(config: ConnectorConfig, kind: RelationKind) -> Reading:
    """Return how a relation of this kind is read. Row versions need a table, a timestamp and no suffix."""
    if not config.mode.incrementing and not config.mode.timestamp:
        return Reading.WHOLE
    has_versions = kind.is_table and not config.suffix
    return Reading.VERSIONS if has_versions and config.mode.timestamp else Reading.CURSOR


def cursor_of(config: ConnectorConfig, table: Table) -> CursorOf:
    """Return the columns of ``table`` that the connector's mode needs."""
    cursor, mode = config.cursor, config.mode
    problems: list[str] = []
    incrementing = _incrementing(cursor, table, problems) if mode.incrementing else None
    timestamps = _timestamps(cursor, table, problems) if mode.timestamp else ()
    timestamp_columns = [column for name in timestamps if (column := table.column(name)) is not None]
    problems += _unfit(table, incrementing, timestamps)
    if cursor.validate_non_null and table.kind.is_table:
        problems += _nullable(table, incrementing, timestamp_columns)
    warnings = tuple(_warnings(config, table, incrementing, timestamp_columns))
    slow = tuple(_slow(table, reading_of(config, table.kind), incrementing, timestamp_columns))
    slow_loads_only = reading_of(config, table.kind) is Reading.VERSIONS
    return CursorOf(
        timestamps=timestamps,
        incrementing=incrementing,
        zoned=any(column.type == "timestamptz" for column in timestamp_columns),
        problems=tuple(problems),
        warnings=warnings if slow_loads_only else warnings + slow,
        load_warnings=slow if slow_loads_only else (),
    )


def _incrementing(cursor: CursorColumns, table: Table, problems: list[str]) -> str | None:
    if cursor.incrementing_by_table and table.name:
        columns = _mapped("incrementing.column.mapping", cursor.incrementing_by_table, table, problems)
        return columns[0] if columns else None
    if cursor.incrementing:
        return cursor.incrementing
    column = next((column.name for column in table.columns if column.numbers_itself), None)
    if column is None:
        problems.append("incrementing.column.name: no column numbers itself; name the one that grows with every row")
    return column


def _timestamps(cursor: CursorColumns, table: Table, problems: list[str]) -> tuple[str, ...]:
    if cursor.timestamps_by_table and table.name:
        return _mapped("timestamp.columns.mapping", cursor.timestamps_by_table, table, problems)
    return cursor.timestamps


def _mapped(key: str, mappings: Iterable[ColumnMapping], table: Table, problems: list[str]) -> tuple[str, ...]:
    """Return the columns of the mapping that fits the table; several or none are a problem."""
    fitting = [mapping for mapping in mappings if mapping.pattern.fullmatch(str(table))]
    if len(fitting) != 1:
        count = "none of its patterns fits" if not fitting else "several of its patterns fit"
        problems.append(f"{key}: {count} {table}; exactly one must")
        return ()
    return fitting[0].columns


def _unfit(table: Table, incrementing: str | None, timestamps: tuple[str, ...]) -> Iterator[str]:
    required = [("timestamp.column.name", name, _TIMESTAMPS) for name in timestamps]
    if incrementing:
        required.insert(0, ("incrementing.column.name", incrementing, _INTEGERS))
    for key, name, types in required:
        column = table.column(name)
        if column is None:
            yield f"{key}: there is no column {name}{nearest(name, (item.name for item in table.columns))}"
        elif column.type not in types:
            yield f"{key}: column {name} is of type {column.declared}, expected {' or '.join(types)}"


def _nullable(table: Table, incrementing: str | None, timestamps: list[Column]) -> Iterator[str]:
    """Yield a problem for NULL ids, and if each of the timestamp columns may be NULL, as the real connector does."""
    remedy = "make it NOT NULL, or set validate.non.null=false"
    column = table.column(incrementing) if incrementing else None
    if column is not None and not column.not_null:
        yield f"incrementing.column.name: column {column.name} may be NULL; {remedy}"
    if timestamps and not any(column.not_null for column in timestamps):
        names = " and ".join(column.name for column in timestamps)
        yield f"timestamp.column.name: column {names} may be NULL; {remedy}"


def _warnings(
    config: ConnectorConfig, table: Table, incrementing: str | None, timestamps: list[Column]
) -> Iterator[str]:
    reading = reading_of(config, table.kind)
    if reading is Reading.CURSOR and table.kind.is_table and not config.suffix:
        yield (
            f"{table}: mode incrementing goes by the highest id, so a row that commits late with a lower id is missed"
            " (guarantee 8 does not cover it); to have late rows sent use mode=timestamp+incrementing; compactory sql"
            " adopt adds a timestamp column to a table that has none"
        )
    elif reading is Reading.CURSOR:
        description = "read with query.suffix" if table.kind.is_table else f"a {table.kind.label}"
        subject = f"{table} is {description}: it" if table.name else "a query"
        rarer = "; timestamp.delay.interval.ms makes that rarer" if config.mode.timestamp else ""
        yield (
            f"{subject} has no row versions to go by, so a row that commits late, when its timestamp or id was passed,"
            f" is missed (guarantee 8 does not cover it){rarer}"
        )
    elif config.mode.timestamp and config.cursor.delay_ms:
        yield f"{table}: timestamp.delay.interval.ms has no effect: rows that commit late are found without a delay"
    ids = [column for column in (table.column(incrementing or ""),) if column is not None and not column.not_null]
    if ids and reading is not Reading.VERSIONS:
        yield f"{table}: rows with NULL in {ids[0].name} are never sent"
    if timestamps and not any(column.not_null for column in timestamps):
        names = " and ".join(column.name for column in timestamps)
        yield f"{table}: {names} may be NULL; such rows are {_fate(config, reading)}"


def _fate(config: ConnectorConfig, reading: Reading) -> str:
    if reading is Reading.CURSOR:
        return "never sent"
    if config.cursor.initial is not None:
        return "left out of a first load, as timestamp.initial says, and sent once they change"
    return "sent, after all others"


def _slow(table: Table, reading: Reading, incrementing: str | None, timestamps: list[Column]) -> Iterator[str]:
    """Yield the cost of a missing index."""
    name = timestamps[0].name if timestamps else incrementing
    if not table.kind.can_have_indexes or reading is Reading.WHOLE or name is None:
        return
    if len(timestamps) > 1:  # only an index on the expression helps, and it is not looked for
        return
    if not any(index.columns[:1] == (name,) and index.predicate is None for index in table.indexes):
        cost = "a first load sorts all rows" if reading is Reading.VERSIONS else "each poll reads the whole table"
        create = f"CREATE INDEX ON {quoted(table.schema)}.{quoted(table.name)} ({quoted(name)})"
        yield f"table {table}: there is no index on {name}, so {cost}; {create}"
