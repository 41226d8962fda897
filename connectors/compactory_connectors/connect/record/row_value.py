"""From the raw columns of a row to the values of a record's nodes, each as its schema has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar

from ..javatext.java_calendar import MILLIS_PER_DAY
from ..javatext.java_number import wrapped
from .record import TIMES, Cell, Constant, Java, Node, RowError, StructNode
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
    """The function from a row to what ``value`` makes of plain values and ``struct`` of its members; None for null.

    ``positions`` says where in a row each column stands. ``cell`` replaces :func:`writer_of`, for short cuts.
    """
    if isinstance(node, StructNode):

        def inner(member: Node) -> Callable[[Row], T | None]:
            return row_reader(member, positions, value, struct, cell)

        members = [*map(inner, node.members)]
        make = struct(node)
        is_null = null_test(node.when, positions) if node.when else (lambda _: False)
        return lambda row: None if is_null(row) else make([member(row) for member in members])
    if isinstance(node, Constant):
        constant = None if node.value is None else value(node.schema, node.java)(node.value)
        return lambda _: constant
    write = value(node.schema, node.java)
    position, convert = positions[node.column], cell(node, write) if cell else writer_of(node, write, None)
    return lambda row: None if (raw := row[position]) is None else convert(raw)


def value_reader(node: Node, positions: Mapping[str, int]) -> Callable[[Row], Any]:
    """The function from a row to the value that a user's function sees, or a sink."""
    return row_reader(node, positions, plain_value, _dictionary)


def _dictionary(node: StructNode) -> Callable[[Sequence[Any]], Any]:
    names = [field.name for field in node.schema.fields]
    return lambda members: dict(zip(names, members, strict=True))


def picker(columns: Sequence[str], chosen: Sequence[str]) -> Callable[[Row], tuple[bytes | None, ...]]:
    """The function from a row with these columns to the values of the chosen ones."""
    positions = [columns.index(name) for name in chosen]
    return lambda row: tuple(row[position] for position in positions)


def writer_of(cell: Cell, write: Callable[[Any], T], null: N) -> Callable[[bytes], T | N]:
    """Raw bytes that are not null → decoded, converted by the steps, written; ``null`` where either gives None.

    A RowError names the column.
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
    """Whether the cell's value is null in a row."""
    position, decode = positions[cell.column], cell.decode

    def is_null(row: Row) -> bool:
        raw = row[position]
        return raw is None or decode(raw) is None

    return is_null


def short_cut(cell: Cell) -> Callable[[bytes], bytes | None] | None:
    """The text of the converted value straight from raw bytes, where its only step knows how; see ``Step.plain``."""
    return cell.steps[0].plain.get(cell.kind) if len(cell.steps) == 1 else None


def plain_value(
    schema: Schema,
    java: Java,
    decimal: Callable[[Schema], Callable[[Decimal], Any]] | None = None,
    name: Callable[[str], str] = str,
) -> Callable[[Any], Any]:
    """From what stands for a value here to what its schema means: days, milliseconds, structs as dictionaries.

    The function gives new lists and dictionaries, and raises RowError for a value that the type does not take.
    """
    if decimal is not None and schema.name == DECIMAL:
        return decimal(schema)
    if (number := time_number(schema, java)) is not None:
        return number

    def part(inner: Schema | None) -> Callable[[Any], Any]:
        assert inner is not None
        convert = plain_value(inner, java_of(inner), decimal, name)
        return lambda value: None if value is None else convert(value)

    if java is Java.LIST:
        item = part(schema.values)
        return lambda values: [*map(item, values)]
    if java is Java.MAP:
        key, value = part(schema.keys), part(schema.values)
        return lambda items: {key(k): value(v) for k, v in items.items()}
    if java is Java.STRUCT:
        parts = [(field.name, name(field.name), part(field.schema)) for field in schema.fields]
        return lambda values: {new: convert(values[old]) for old, new, convert in parts}
    return _same


def _same(value: Any) -> Any:
    return value


def refuse_misfit(schema: Schema, java: Java) -> None:
    """Raises ValueError where values of ``java`` don't go with the schema, which Connect refuses too."""
    if java_of(schema) is not java and time_number(schema, java) is None:
        under = f"as {schema.name}" if schema.name in _TIME_NUMBERS or schema.name == DECIMAL else "under a schema"
        raise ValueError(f"can't write {java.value} {under} of type {schema.type.name}; Connect refuses it too")


def time_number(schema: Schema, java: Java) -> Callable[[int], int] | None:
    """The function from a date or time to the number that its logical type holds; None where there is no such type.

    The function raises RowError for a value that the type does not take.
    """
    number = _TIME_NUMBERS.get(schema.name or "")
    if number is None or java not in TIMES:
        return None
    return (lambda micros: number(micros // 1000)) if java is Java.SQL_TIMESTAMP else number


def _days(millis: int) -> int:
    """Days since the epoch as ``Date.fromLogical`` counts them, in 32 bits."""
    days, rest = divmod(millis, MILLIS_PER_DAY)
    if rest:
        raise RowError("Connect's Date takes whole days only")
    return wrapped(days, 32)


def _clock(millis: int) -> int:
    """Milliseconds since midnight."""
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
    """The class of a value inside an array, a map or a struct: the same that a column of this schema has."""
    return _CLASSES.get(schema.name or "") or _CLASSES[schema.type]
