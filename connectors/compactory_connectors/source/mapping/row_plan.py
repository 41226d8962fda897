"""The whole way of a row, compiled once per table: columns → transforms → converters → key and value bytes.

``RowPlan`` works on raw columns as psycopg's ``cursor.pgresult.get_value`` returns them (text format, None for NULL) in
a session whose formats are those that ``server.connect`` sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from compactory.errors import ConfigError
from compactory_connectors.connect.record.record import Cell, KeyParts, Kind, Node, Record, RowError, StructNode, cells
from compactory_connectors.connect.record.row_value import picker
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.connect.transforms.branches import (
    Case,
    Failed,
    Leaf,
    case_without_nulls,
    cases_of,
    deciding_cells,
    leaves,
)

from ..config.connector import ConnectorConfig
from ..postgres.catalog import Table
from .column_type import column_cell, column_warnings
from .key_parts import is_exact, key_reader, sample
from .row_function import Row, RowCompiler, RowFunctions
from .sql_renderer import Formatted, formatted

__all__ = ["RowPlan", "compile_plan", "value_schema"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan(RowFunctions):
    """The plan by which rows of a table become records. Immutable, safe to share between threads.

    A deleted row that came as JSON (``to_jsonb(OLD)``) takes the same path: let Postgres turn the columns of the key
    and of the case back with ``jsonb_to_record``, and call ``render_deletion`` on the result.
    """

    table: Table
    topic: str
    """The topic of most rows."""
    topics: tuple[str, ...]
    """Every topic that rows go to."""
    publishes: bool
    """False: a Filter drops every row."""
    routed: bool
    """Records name their topic: there are several."""
    columns: tuple[str, ...]
    """Names of the columns to SELECT, in this order; ``raw`` below may have more after them."""
    json_columns: frozenset[str]
    """Those of ``columns`` that Postgres must convert with ``to_jsonb``."""
    key_columns: tuple[str, ...]
    """The columns that decide the record's key, in table order; empty when records have no key."""
    key_columns_of: Callable[[Row], KeyParts] = field(repr=False)
    """Raw columns → those of the key."""
    case_columns: tuple[str, ...]
    """Columns that decide how the row is treated; functions of the key need them too."""
    warnings: tuple[str, ...]
    """Doubts: columns left out because the real connector leaves out their type, fields that do not exist."""
    exact_key: bool
    """Rows have one record key only if Postgres takes ``key_columns`` for equal."""
    key_parts: Callable[[bytes], KeyParts | None] = field(repr=False)
    """Key bytes → the ``key_columns`` of the rows that have this key; None where that is not known."""
    formatted: Formatted | None = field(default=None, repr=False)
    """The same of a row that lives, as Postgres can write it itself; None where it is not known to write the same."""

    def key_digest(self, *facts: object) -> str:
        """Return a digest of what makes keys: those of sample rows, whatever writes them, and these facts."""
        samples = {name: sample(self.table.column(name), number) for number, name in enumerate(self.columns, 1)}
        ground: list[object] = [self.key_columns, *facts]
        for absent in (None, *self.case_columns):
            try:
                ground.append(self.render_key([None if name == absent else samples[name] for name in self.columns]))
            except (RowError, ValueError) as error:
                ground.append(type(error).__name__)
        return sha256(repr(ground).encode()).hexdigest()[:16]


def compile_plan(config: ConnectorConfig, table: Table) -> RowPlan:
    """Return the plan for ``table``. Raises ConfigError when a transform or converter does not fit its columns."""
    source = _source_record(config, table)
    case = cases_of(source, config.transforms)
    if isinstance(usual_case := case_without_nulls(case), Failed):
        raise ConfigError(f"table {table}: {usual_case.reason}")
    records = [leaf.record for leaf in leaves(case)]
    deciding = list(deciding_cells(case))
    columns = _columns(table, [*deciding, *(cell for record in records for cell in _used(record))])
    topics = list(dict.fromkeys(record.topic for record in records)) or [source.topic]
    routed = len(topics) > 1
    compiler = RowCompiler(
        config.key_converter,
        config.value_converter,
        {name: index for index, name in enumerate(columns)},
        routed=routed,
    )
    functions = compiler.compile(case)
    if compiler.problems:
        raise ConfigError(f"table {table}: {problem}" for problem in compiler.problems)
    key_columns = _columns(table, [cell for record in records for cell in cells(record.key)])
    key = records[0].key if records and all(record.key == records[0].key for record in records) else None
    return RowPlan(
        functions.render,
        functions.render_key,
        functions.render_deletion,
        table=table,
        topic=topics[0],
        topics=tuple(topics),
        publishes=bool(records),
        routed=routed,
        columns=columns,
        json_columns=frozenset(cell.column for cell in cells(source.value) if cell.kind is Kind.JSON) & {*columns},
        key_columns=key_columns,
        key_columns_of=picker(columns, key_columns),
        case_columns=_columns(table, deciding),
        warnings=tuple(
            dict.fromkeys(warning for record in records or [source] for warning in _warnings(record, table))
        ),
        exact_key=is_exact(key, config.key_converter, table),
        key_parts=key_reader(key, config.key_converter, table, columns, key_columns, functions.render_key),
        formatted=_formatted(config, case, table),
    )


def value_schema(config: ConnectorConfig, table: Table) -> Schema | None:
    """Return the schema of values of rows without NULLs; None where a transform drops or refuses these rows."""
    case = case_without_nulls(cases_of(_source_record(config, table), config.transforms))
    return case.record.value.schema if isinstance(case, Leaf) else None


def _formatted(config: ConnectorConfig, case: Case, table: Table) -> Formatted | None:
    if not isinstance(case, Leaf):
        return None
    columns = {column.name: column for column in table.columns}
    return formatted(case.record, config.key_converter, config.value_converter, columns)


def _used(record: Record) -> Iterator[Cell]:
    for node in (record.key, record.value):
        yield from cells(node)


def _warnings(record: Record, table: Table) -> Iterator[str]:
    yield from record.warnings
    changed = [cell.column for cell in cells(record.key) if not all(step.lossless for step in cell.steps)]
    for column in dict.fromkeys(changed):
        yield (
            f"table {table}: the key is made of column {column} by a conversion that may give two rows one key: they"
            " overwrite each other in the topic, and before each removal every row's key is looked at"
        )


def _columns(table: Table, used: list[Cell]) -> tuple[str, ...]:
    names = {cell.column for cell in used}
    return tuple(column.name for column in table.columns if column.name in names)


def _source_record(config: ConnectorConfig, table: Table) -> Record:
    """Return the record as the connector makes it before transforms: no key, a struct of the supported columns."""
    fields: list[Field] = []
    members: list[Node] = []
    warnings: list[str] = []
    for column in table.columns:
        warnings += column_warnings(table, column, config.columns)
        cell = column_cell(column, config.columns)
        if cell is not None:
            fields.append(Field(column.name, cell.schema))
            members.append(cell)
    schema = Schema(type=Type.STRUCT, name=table.name or None, fields=tuple(fields))
    value = StructNode(schema, tuple(members))
    return Record(topic=config.topic(table.name), key=None, value=value, warnings=tuple(warnings))
