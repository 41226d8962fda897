"""Columns → nodes of a record, with ``compactory.types=all`` also those that the JDBC source connector leaves out.

Arrays become Connect arrays, hstore a map of texts, composites structs; whatever else it leaves out becomes text, in
Postgres' own form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from compactory_connectors.connect.record.column_value import Parts, array_parts, composite_parts, hstore_items
from compactory_connectors.connect.record.record import Cell, Java, Kind, Node, StructNode
from compactory_connectors.connect.record.row_value import java_of
from compactory_connectors.connect.record.schema import Field, Schema, Type

from ..config.column_options import ColumnOptions, ColumnTypes
from ..postgres.catalog import Column, Shape
from .column_type import STRING, Mapped, column_cell, connect_type, truncates

__all__ = ["column_node", "column_warnings"]

_Decode: TypeAlias = Callable[[bytes], Any]

_TEXT = Schema(type=Type.STRING)
_HSTORE = Schema.map(_TEXT, _TEXT.as_optional(True))


def column_node(column: Column, options: ColumnOptions) -> Node | None:
    """The value of ``column``, or None where its type is left out; a composite is a struct of cells."""
    cell = column_cell(column, options)
    if cell is not None or options.types is ColumnTypes.CONNECTOR:
        return cell
    make = _struct if column.attributes else _cell
    return make(column.name, column, options, _as_it_is, optional=not column.not_null)


def column_warnings(table: object, column: Column, options: ColumnOptions) -> Iterator[str]:
    """Warnings to an operator: the column is left out, or its values are cut off."""
    place = f"table {table}: column {column.name}"
    if truncates(column, options):
        yield (
            f"{place} is NUMERIC without precision, of which numeric.mapping={options.numeric_mapping.value} makes"
            " a number of 8 bits: fractions are cut off, and above 127 the connector fails; declare a precision"
        )
    if options.types is ColumnTypes.CONNECTOR and column_cell(column, options) is None:
        yield f"{place} of type {column.type} is left out: not supported; compactory.types=all keeps it"


def _as_it_is(raw: bytes) -> bytes:
    return raw


def _attribute(pick: Callable[[bytes], bytes | None], number: int) -> Callable[[bytes], bytes | None]:
    """One attribute of a composite that ``pick`` finds in a column."""

    def found(raw: bytes) -> bytes | None:
        composite = pick(raw)
        return None if composite is None else composite_parts(composite)[number]

    return found


def _struct(
    column: str, shape: Shape, options: ColumnOptions, pick: Callable[[bytes], bytes | None], *, optional: bool
) -> StructNode:
    members: list[Node] = []
    for number, (_, part) in enumerate(shape.attributes):
        find = _attribute(pick, number)
        make = _struct if part.attributes else _cell
        members.append(make(column, part, options, find, optional=True))
    names = (name for name, _ in shape.attributes)
    fields = tuple(Field(name, member.schema) for name, member in zip(names, members, strict=True))
    schema = Schema(type=Type.STRUCT, name=shape.type, optional=optional, fields=fields)
    when = Cell(column=column, kind=Kind.CONVERTED, schema=_TEXT, java=Java.STRING, decode=pick)
    return StructNode(schema, tuple(members), when if optional else None)


def _cell(
    column: str, shape: Shape, options: ColumnOptions, pick: Callable[[bytes], bytes | None], *, optional: bool
) -> Cell:
    """A value that is no struct, of what ``pick`` finds in the column."""
    kind, schema, decode = _mapped(shape, options)
    if pick is not _as_it_is:
        kind, decode = Kind.CONVERTED, _through(pick, decode)
    return Cell(column=column, kind=kind, schema=schema.as_optional(optional), java=java_of(schema), decode=decode)


def _through(pick: Callable[[bytes], bytes | None], decode: _Decode) -> _Decode:
    def read(raw: bytes) -> Any:
        part = pick(raw)
        return None if part is None else decode(part)

    return read


def _mapped(shape: Shape, options: ColumnOptions) -> Mapped:
    """A value as the connector reads it; else by its parts, inside of which structs are dictionaries; else as text."""
    if (mapped := connect_type(shape, options)) is not None:
        return mapped
    if shape.element is not None:
        schema, decode = _array(shape.element, shape.dimensions, options)
    elif shape.attributes:
        schema, decode = _composite(shape, options)
    elif shape.type == "hstore":
        schema, decode = _HSTORE, _hstore
    else:
        return STRING
    return Kind.CONVERTED, schema, decode


def _value(shape: Shape, options: ColumnOptions) -> tuple[Schema, _Decode]:
    *_, schema, decode = _mapped(shape, options)
    return schema.as_optional(True), decode


def _array(element: Shape, dimensions: int, options: ColumnOptions) -> tuple[Schema, _Decode]:
    values, decode = _value(element, options)
    schema = Schema.array(values)
    for _ in range(dimensions - 1):
        schema = Schema.array(schema.as_optional(True))
    semicolons = element.type == "box"

    def read(parts: Parts) -> list[Any]:
        return [None if part is None else read(part) if isinstance(part, list) else decode(part) for part in parts]

    return schema, lambda raw: read(array_parts(raw, dimensions, semicolons=semicolons))


def _composite(shape: Shape, options: ColumnOptions) -> tuple[Schema, _Decode]:
    parts = [(name, *_value(part, options)) for name, part in shape.attributes]
    fields = tuple(Field(name, schema) for name, schema, _ in parts)

    def read(raw: bytes) -> dict[str, Any]:
        return {
            name: None if part is None else decode(part)
            for (name, _, decode), part in zip(parts, composite_parts(raw), strict=True)
        }

    return Schema(type=Type.STRUCT, name=shape.type, fields=fields), read


def _hstore(raw: bytes) -> dict[str, str | None]:
    return {name.decode(): None if value is None else value.decode() for name, value in hstore_items(raw).items()}
