"""Functions from the raw columns of a row to the values of a record's nodes, each of its schema's type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar

from ..javatext.java_calendar import MILLIS_PER_DAY
from ..javatext.java_number import wrapped
from .record import TIMES, Cell, Constant, Java, Kind, Node, RowError, StructNode
from .schema import DATE, DECIMAL, TIME, TIMESTAMP, Schema, Type

__all__ = [
    "Row",
    "java_of",
    "null_test",
    "picker",
    "plain_value",
    "refuse_misfit",
    "row_reader",
    "short_cut",
    "time_number",
    "value_reader",
    "writer_of",
]

T = TypeVar("T")
N = TypeVar("N")

Row: TypeAlias = Sequence[bytes | None]
"""Raw columns in Postgres' text format."""


def row_reader(
    node: Node,
    positions: Mapping[str, int],
    value: Callable[[Schema, Java], Callable[[Any], T]],
    struct: Callable[[StructNode], Callable[[list[Any]], T]],
    cell: Callable[[Cell, Callable[[Any], T]], Callable[[bytes], T | None]] | None = None,
) -> Callable[[Row], T | None]:
    """Return the function from a row to the value of ``node``; None for null.

    ``value`` makes the function for plain values, ``struct`` that for the members of a struct. ``positions`` are the
    positions of columns in a row. ``cell`` replaces :func:`writer_of`, for short cuts.
    """
    if isinstance(node, StructNode):

        def inner(member: Node) -> Callable[[Row], T | None]:
            return row_reader(member, positions, value, struct, cell)

        members = [*map(inner, node.members)]
        join = struct(node)
        return lambda row: join([member(row) for member in members])
    if isinstance(node, Constant):
        constant = None if node.value is None else value(node.schema, node.java)(node.value)
        return lambda _: constant
    write = value(node.schema, node.java)
    position, convert = positions[node.column], cell(node, write) if cell else writer_of(node, write, None)
    return lambda row: None if (raw := row[position]) is None else convert(raw)


def value_reader(node: Node, positions: Mapping[str, int]) -> Callable[[Row], Any]:
    """Return the function from a row to the value that a user's function or a sink gets."""
    return row_reader(node, positions, plain_value, _dictionary, _cell_reader)


def _cell_reader(cell: Cell, write: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    if cell.kind is Kind.JSON and not cell.steps:
        return lambda raw: json.loads(raw, parse_float=Decimal)
    return writer_of(cell, write, None)


def _dictionary(node: StructNode) -> Callable[[Sequence[Any]], Any]:
    names = [field.name for field in node.schema.fields]
    return lambda members: dict(zip(names, members, strict=True))


def picker(columns: Sequence[str], chosen: Sequence[str]) -> Callable[[Row], tuple[bytes | None, ...]]:
    """Return the function from a row with these columns to the values of the chosen ones."""
    positions = [columns.index(name) for name in chosen]
    return lambda row: tuple(row[position] for position in positions)


def writer_of(cell: Cell, write: Callable[[Any], T], null: N) -> Callable[[bytes], T | N]:
    """Return the function that decodes raw bytes, applies the steps and writes the value; ``null`` stands for None.

    The function raises RowError that names the column.
    """
    decode, steps, column = cell.decode, tuple(step.apply for step in cell.steps), cell.column

    def convert(raw: bytes) -> T | N:
        try:
            value = decode(raw)
            for step in steps:
                if value is None:
                    return null
                value = step(value)
            return null if value is None else write(value)
        except RowError as error:
            raise RowError(f"column {column}: {error}") from None

    return convert


def null_test(cell: Cell, positions: Mapping[str, int]) -> Callable[[Row], bool]:
    """Return the function that is True for a row in which the cell's value is null."""
    position, decode = positions[cell.column], cell.decode

    def is_null(row: Row) -> bool:
        raw = row[position]
        return raw is None or decode(raw) is None

    return is_null


def short_cut(cell: Cell) -> Callable[[bytes], bytes | None] | None:
    """Return the short cut of the cell's only step for its kind of column, or None; see ``Step.plain``."""
    return cell.steps[0].plain.get(cell.kind) if len(cell.steps) == 1 else None


def plain_value(schema: Schema, java: Java) -> Callable[[Any], Any]:
    """Return the function from a value to what its schema means, such as days of a date.

    The function makes new lists, and raises RowError for a value that the type does not take.
    """
    if (number := time_number(schema, java)) is not None:
        return number
    if java is Java.LIST and schema.values is not None:
        item = plain_value(schema.values, java_of(schema.values))
        return lambda values: [None if value is None else item(value) for value in values]
    return lambda value: value


def refuse_misfit(schema: Schema, java: Java) -> None:
    """Raise ValueError if the schema is not one for values of ``java``, which Connect refuses too."""
    if java_of(schema) is not java and time_number(schema, java) is None:
        under = f"as {schema.name}" if schema.name in _TIME_NUMBERS or schema.name == DECIMAL else "under a schema"
        raise ValueError(f"can't write {java.value} {under} of type {schema.type.name}; Connect refuses it too")


def time_number(schema: Schema, java: Java) -> Callable[[int], int] | None:
    """Return the function from a date or time to the number of its logical type; None if the schema has no such type.

    The function raises RowError for a value that the type does not take.
    """
    number = _TIME_NUMBERS.get(schema.name or "")
    if number is None or java not in TIMES:
        return None
    return (lambda micros: number(micros // 1000)) if java is Java.SQL_TIMESTAMP else number


def _days(millis: int) -> int:
    """Return days since the epoch as ``Date.fromLogical`` counts them, in 32 bits."""
    days, remainder = divmod(millis, MILLIS_PER_DAY)
    if remainder:
        raise RowError("Connect's Date takes whole days only")
    return wrapped(days, 32)


def _clock(millis: int) -> int:
    if not 0 <= millis <= MILLIS_PER_DAY:
        raise RowError("Connect's Time takes times of one day only; in UTC this one falls on another")
    return millis


_TIME_NUMBERS: Mapping[str, Callable[[int], int]] = {DATE: _days, TIME: _clock, TIMESTAMP: int}

_CLASSES = {
    DATE: Java.SQL_DATE,
    DECIMAL: Java.DECIMAL,
    TIME: Java.SQL_TIME,
    TIMESTAMP: Java.SQL_TIMESTAMP,
    Type.BOOLEAN: Java.BOOLEAN,
    Type.INT8: Java.BYTE,
    Type.INT16: Java.SHORT,
    Type.INT32: Java.INTEGER,
    Type.INT64: Java.LONG,
    Type.FLOAT32: Java.FLOAT,
    Type.FLOAT64: Java.DOUBLE,
    Type.STRING: Java.STRING,
    Type.BYTES: Java.BYTES,
    Type.ARRAY: Java.LIST,
    Type.MAP: Java.MAP,
    Type.STRUCT: Java.STRUCT,
}


def java_of(schema: Schema) -> Java:
    """Return the Java class of a column of this schema, or of a value within a list."""
    return _CLASSES.get(schema.name or "") or _CLASSES[schema.type]
