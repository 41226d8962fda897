"""Records as the source of a connector makes them of the same rows, byte for byte.

The row function is the source's own (``source.mapping.row_plan``). Spark writes the texts that it is given, as Postgres
would have sent them in the formats that a source's session sets. Spark's strings are taken for Postgres' own text (see
``column_types``) but where it spells a value in one way only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Self, TypeAlias, cast

import pyarrow as pa

from compactory.errors import ConfigError
from compactory_connectors.connect.record.record import RowError
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.mapping.row_plan import RowPlan, compile_plan
from compactory_connectors.source.postgres.catalog import Table
from compactory_connectors.source.postgres.chunk_reader import RawRow

from ..column_types import ColumnType
from ..identifier import quoted
from ..target import TargetColumn
from .jsonb_text import jsonb_text
from .record_maker import Made
from .table_columns import type_of, unwritable

__all__ = ["TableRecords", "as_postgres", "text_reader"]

Text: TypeAlias = bytes | RowError | None
"""A value in Postgres' text format; RowError where it is none of its type."""

_NOWHERE = Connection(MappingProxyType({}))
_SHAPES: Final = {
    "uuid": re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "time without time zone": re.compile(rb"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,5}[1-9])?|24:00:00"),
    "oid": re.compile(rb"0|[1-9]\d{0,9}"),
}
"""The form of a string as Postgres would send it, for types of which Postgres reads more forms than it writes."""


def as_postgres(column: str, kind: ColumnType) -> str:
    """A column's text as Postgres would send it, in Spark's SQL. Floats have more digits; they are the same numbers."""
    match kind.spark:
        case "boolean":
            return f"CASE WHEN {column} THEN 't' WHEN NOT {column} THEN 'f' END"
        case "binary":
            return rf"concat(r'\x', lower(hex({column})))"
        case "timestamp":
            return f"concat(string({column}), '+00')"
        case _:
            return f"string({column})"


def text_reader(kind: ColumnType) -> Callable[[pa.Array], list[Text]]:
    """Makes of a column of texts what Postgres would send: RowError in place of a text that is no value of the type."""
    shape, name = _SHAPES.get(kind.name), kind.name

    def read(text: bytes) -> Text:
        if name == "jsonb":
            return jsonb_text(text)
        return text if shape is None or shape.fullmatch(text) else RowError(f"is not {kind} as Postgres writes it")

    def texts(column: pa.Array) -> list[Text]:
        found: list[Text] = column.cast(pa.binary()).to_pylist()
        if shape is None and name != "jsonb":
            return found
        return [read(text) if isinstance(text, bytes) else text for text in found]

    return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecords:
    """How rows of one table become records; travels without the database's login and the producer's properties."""

    connector: ConnectorConfig
    table: Table
    needs: tuple[str, ...]
    """Columns of the table, in its order, of which records are made."""
    key: tuple[str, ...]
    """Those that decide the record's key."""

    @classmethod
    def of(cls, connector: ConnectorConfig, table: Table, *, dry: bool) -> Self:
        """Raises ConfigError with every reason why rows of this table can't be loaded into its topic.

        ``dry``: converters change nothing anywhere, no registry gets a schema.
        """
        if dry:
            key, value = connector.key_converter.dry(), connector.value_converter.dry()
            connector = replace(connector, key_converter=key, value_converter=value)
        plan = compile_plan(connector, table)
        used = {*plan.columns, *([connector.soft_delete.column] if connector.soft_delete else [])}
        problems = [*_problems(plan), *_unwritable(table, used)]
        if problems:
            raise ConfigError(problems)
        names = tuple(column.name for column in table.columns if column.name in used)
        bare = replace(connector, connection=_NOWHERE, producer=MappingProxyType({}))
        return cls(connector=bare, table=table, needs=names, key=plan.key_columns)

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """The columns that a load fills."""
        used = [column for column in self.table.columns if column.name in self.needs]
        return tuple(
            TargetColumn(name=column.name, type=str(type_of(column)), nullable=not column.not_null) for column in used
        )

    @property
    def tells_keys(self) -> bool:
        """See :class:`record_maker.Maker`: not where other columns decide how a row is treated."""
        return set(compile_plan(self.connector, self.table).case_columns) <= set(self.key)

    def written(self, name: str) -> str:
        """See :class:`record_maker.Maker`."""
        return f"{as_postgres(quoted(name), self._kind(name))} AS {quoted(name)}"

    def compiled(self, names: Sequence[str]) -> Callable[[pa.RecordBatch], Iterator[Made | None]]:
        """See :class:`record_maker.Maker`."""
        plan = compile_plan(self.connector, self.table)
        whole = set(self.needs) <= set(names)
        render = plan.render if whole else lambda row: (plan.render_key(row), None)
        readers = {name: (names.index(name), text_reader(self._kind(name))) for name in plan.columns if name in names}
        gone = self._gone(names) if whole else _none

        def make(batch: pa.RecordBatch) -> Iterator[Made | None]:
            read = {name: reader(batch.column(position)) for name, (position, reader) in readers.items()}
            nothing: list[Text] = [None] * batch.num_rows
            texts = [read.get(name, nothing) for name in plan.columns]
            doubtful = any(RowError in set(map(type, column)) for column in texts)
            for row, absent in zip(zip(*texts, strict=True), gone(batch), strict=True):
                problem = _problem(row, plan.columns) if doubtful else None
                if problem is not None:
                    yield Made(problem=problem)
                else:
                    yield _record(plan.render_deletion if absent else render, cast("RawRow", row))

        return make

    def _kind(self, name: str) -> ColumnType:
        return next(type_of(column) for column in self.table.columns if column.name == name)

    def _gone(self, names: Sequence[str]) -> Callable[[pa.RecordBatch], Sequence[bool]]:
        """Which rows of a batch are soft-deleted, and so tombstones."""
        delete = self.connector.soft_delete
        if delete is None or not delete.tombstone:
            return _none
        position = names.index(delete.column)
        return lambda batch: [text == "f" for text in batch.column(position).to_pylist()]


def _none(batch: pa.RecordBatch) -> Sequence[bool]:
    return [False] * batch.num_rows


def _problems(plan: RowPlan) -> Iterator[str]:
    if len(plan.topics) > 1:
        yield f"table {plan.table}: transforms send its rows to several topics, and a load fills one"
    if not plan.key_columns:
        yield f"table {plan.table}: its records have no key, so that nothing can be compared with what the topic has"
    if not plan.publishes:
        yield f"table {plan.table}: a Filter of the transforms drops every row"


def _unwritable(table: Table, used: Container[str]) -> Iterator[str]:
    for column in table.columns:
        if column.name in used and (why := unwritable(type_of(column), column.type_kind)) is not None:
            yield f"table {table}: column {column.name}: {why}; load into Postgres, which the source publishes"


def _problem(row: Sequence[Text], names: Sequence[str]) -> str | None:
    """Which value is none of its column."""
    values = zip(names, row, strict=True)
    return next((f"column {name}: {text}" for name, text in values if isinstance(text, RowError)), None)


def _record(render: Callable[[RawRow], ProducerRecord | None], row: RawRow) -> Made | None:
    try:
        written = render(row)
    except RowError as error:
        return Made(problem=str(error))
    if written is None:
        return None
    if written[0] is None:
        return Made(problem="the record's key is null, which a compacted topic refuses")
    return Made(written[0], written[1])
