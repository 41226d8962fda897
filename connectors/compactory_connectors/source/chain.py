"""The whole way of a row, compiled once per table: columns → transforms → converters → key and value bytes.

``RowPlan`` works on raw columns as psycopg's ``cursor.pgresult.get_value`` returns them (text format, None for NULL) in
a session whose formats are those that ``server.connect`` sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compactory.errors import ConfigError

from .catalog import Table
from .column_type import column_cell
from .connector import ConnectorConfig
from .converters import Render
from .record import Node, Record, RowError, StructNode, cells
from .schema import Field, Schema, Type
from .transforms import TransformError

__all__ = ["RowError", "RowPlan", "compile_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """How rows of one table become records. Immutable, safe to share between threads.

    A deleted row that came as JSON (``to_jsonb(OLD)``) takes the same path: let Postgres turn it back into columns with
    ``SELECT <columns> FROM jsonb_populate_record(NULL::<table>, <row>)``, and call ``render_key`` on the result.
    """

    table: Table
    topic: str
    columns: tuple[str, ...]
    """Names of the columns to SELECT, in this order; ``raw`` below may have more behind them."""
    key_columns: tuple[str, ...]
    """The columns that decide the record's key, in table order; empty when records have no key."""
    warnings: tuple[str, ...]
    """Columns left out because the real connector leaves out their type."""
    render_key: Render = field(repr=False)
    """Raw columns → key bytes; for deletions."""
    render_value: Render = field(repr=False)
    """Raw columns → value bytes."""

    def render(self, raw: Sequence[bytes | None]) -> tuple[bytes | None, bytes | None]:
        """Key and value of one row; raises RowError for a value that the real connector's task would fail on."""
        return self.render_key(raw), self.render_value(raw)


def compile_plan(config: ConnectorConfig, table: Table) -> RowPlan:
    """The plan for ``table``; raises ConfigError when a transform or converter does not fit its columns."""
    record = _source_record(config, table)
    problems: list[str] = []
    for spec in config.transforms:
        try:
            record = spec.transform.apply(record)
        except TransformError as error:
            # what follows would only repeat this problem in other words
            raise ConfigError(f"table {table}: transforms.{spec.alias}: {error}") from None
    used = {cell.column for node in (record.key, record.value) for cell in cells(node)}
    columns = tuple(column.name for column in table.columns if column.name in used)
    positions = {name: index for index, name in enumerate(columns)}
    renders: list[Render] = []
    for half, chosen, node in (
        ("key", config.key_converter, record.key),
        ("value", config.value_converter, record.value),
    ):
        try:
            renders.append(chosen.converter.compile(node, positions))
        except ValueError as error:
            problems.append(f"table {table}: {half}.converter: {error}")
    if problems:
        raise ConfigError(problems)
    key_columns = {cell.column for cell in cells(record.key)}
    return RowPlan(
        table=table,
        topic=record.topic,
        columns=columns,
        key_columns=tuple(name for name in columns if name in key_columns),
        warnings=record.warnings,
        render_key=renders[0],
        render_value=renders[1],
    )


def _source_record(config: ConnectorConfig, table: Table) -> Record:
    """The record as the connector makes it before transforms: no key, a struct of the supported columns."""
    fields: list[Field] = []
    members: list[Node] = []
    warnings: list[str] = []
    for column in table.columns:
        cell = column_cell(column)
        if cell is None:
            warnings.append(f"table {table}: column {column.name} of type {column.type} is left out: not supported")
            continue
        fields.append(Field(column.name, cell.schema))
        members.append(cell)
    schema = Schema(type=Type.STRUCT, name=table.name, fields=tuple(fields))
    value = StructNode(schema, tuple(members))
    return Record(topic=config.topic(table.name), key=None, value=value, warnings=tuple(warnings))
