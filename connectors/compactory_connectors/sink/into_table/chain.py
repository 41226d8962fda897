"""Transforms on the records of a sink, compiled once for every shape of key and value.

The source compiles a chain against the columns of a table; here the fields of a record stand in for columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from compactory_connectors.connect.converters.decoders import Decoded, java_value
from compactory_connectors.connect.record.record import Cell, Constant, Java, Kind, Node, Record, StructNode
from compactory_connectors.connect.record.row_value import java_of, null_test, value_reader
from compactory_connectors.connect.record.schema import Field, Schema, Type
from compactory_connectors.connect.transforms import TransformSpec
from compactory_connectors.connect.transforms.branches import Case, Dropped, Failed, Fork, cases_of

from ..record import RecordRefused

__all__ = ["Chain", "Change"]

_KINDS = {bool: Type.BOOLEAN, int: Type.INT64, float: Type.FLOAT64, str: Type.STRING, Decimal: Type.FLOAT64}
_NULL = Constant(schema=Schema(type=Type.STRING, optional=True), java=Java.STRING, value=None)


class Change(NamedTuple):
    """A record after the transforms. The topic names the table. Without a schema, values are those of JSON."""

    topic: str
    key: Decoded | None
    value: Decoded | None


_Apply: TypeAlias = Callable[[list[Any]], Change | None]


class Chain:
    """Applies transforms. Owned by one thread. Raises RecordRefused, RowError."""

    def __init__(self, specs: Sequence[TransformSpec]) -> None:
        self._specs = specs
        self._compiled: dict[tuple[str, Schema | None, Schema | None], _Apply] = {}

    def apply(self, topic: str, key: Decoded | None, value: Decoded | None) -> Change | None:
        """Return the record after the transforms; None: a Filter drops it."""
        schemas = [half and (half.schema or _schema_of(half.value)) for half in (key, value)]
        shape = topic, schemas[0], schemas[1]
        if shape not in self._compiled:
            if len(self._compiled) > 1000:
                self._compiled.clear()
            self._compiled[shape] = _compiled(*shape, self._specs)
        change = self._compiled[shape]([half and half.value for half in (key, value)])
        if change is None:
            return None
        return Change(change.topic, _bare(change.key, key or value), _bare(change.value, value or key))


def _schema_of(value: Any) -> Schema:
    """Return the schema of a JSON value without one; null counts as a text."""
    if isinstance(value, dict):
        return Schema(type=Type.STRUCT, fields=tuple(Field(name, _schema_of(item)) for name, item in value.items()))
    if isinstance(value, list):
        return Schema.array(_schema_of(value[0] if value else ""), optional=True)
    return Schema(type=_KINDS.get(type(value), Type.STRING), optional=True)


def _bare(half: Decoded | None, source: Decoded | None) -> Decoded | None:
    """Return the half without a schema if its source had none: that schema served the transforms only."""
    return half._replace(schema=None) if half and source and source.schema is None else half


def _compiled(topic: str, key: Schema | None, value: Schema | None, specs: Sequence[TransformSpec]) -> _Apply:
    """Return the function of key and value for records of these schemas."""
    places: dict[str, tuple[int, Sequence[str]]] = {}

    def node(schema: Schema, half: int, *names: str) -> Node:
        if schema.type is Type.STRUCT and (not schema.optional or not names):
            members = tuple(node(field.schema, half, *names, field.name) for field in schema.fields)
            return StructNode(schema.as_optional(False), members)
        column = ".".join([("key", "value")[half], *names])
        while column in places:
            column += "'"
        places[column] = half, names
        decode = java_value(schema) or (lambda value: value)
        return Cell(column=column, kind=Kind.CONVERTED, schema=schema, java=java_of(schema), decode=decode)

    record = Record(
        topic=topic, key=None if key is None else node(key, 0), value=_NULL if value is None else node(value, 1)
    )
    apply = _of_case(cases_of(record, specs), {column: number for number, column in enumerate(places)})
    return lambda halves: apply([_at(halves[half], names) for half, names in places.values()])


def _at(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _of_case(case: Case, positions: dict[str, int]) -> _Apply:
    if isinstance(case, Fork):
        is_null = null_test(case.cell, positions)
        null, not_null = _of_case(case.null, positions), _of_case(case.not_null, positions)
        return lambda row: null(row) if is_null(row) else not_null(row)
    if isinstance(case, Dropped):
        return lambda _: None
    if isinstance(case, Failed):
        return partial(_refuse, case.reason)
    record = case.record
    key, value = _half(record.key or _NULL, positions), _half(record.value, positions)

    def apply(row: list[Any]) -> Change:
        return Change(record.topic, key(row), value(row))

    return apply


def _refuse(reason: str, _row: list[Any]) -> Change | None:
    raise RecordRefused(reason)


def _half(node: Node, positions: dict[str, int]) -> Callable[[list[Any]], Decoded | None]:
    if isinstance(node, Constant) and node.value is None:
        return lambda _: None
    read, schema = value_reader(node, positions), node.schema
    return lambda row: Decoded(schema, read(row))
