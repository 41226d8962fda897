"""Transforms on a sink's records: the source's own, compiled once for every shape of key and value.

The source compiles a chain against the columns of a table; here the fields of a record stand in for columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from compactory_connectors.source.plan.branches import Case, Dropped, Failed, Fork, Leaf, grow
from compactory_connectors.source.record.record import (
    Cell,
    Constant,
    Java,
    Kind,
    Node,
    Record,
    RowError,
    StructNode,
    java_of,
)
from compactory_connectors.source.record.schema import Field, Schema, Type
from compactory_connectors.source.record.transforms import TransformSpec

from ..failure import RecordRefused
from .decoding import Decoded, java_value

__all__ = ["Chain", "Change", "schema_of"]

_KINDS = {bool: Type.BOOLEAN, int: Type.INT64, float: Type.FLOAT64, str: Type.STRING, Decimal: Type.FLOAT64}


class Change(NamedTuple):
    """A record behind the transforms: the topic names the table; a schema None has values as JSON has them."""

    topic: str
    key: Decoded | None
    value: Decoded | None


def schema_of(value: Any) -> Schema:
    """The schema of a JSON value that has none; null counts as a text."""
    if isinstance(value, dict):
        return Schema(type=Type.STRUCT, fields=tuple(Field(name, schema_of(item)) for name, item in value.items()))
    if isinstance(value, list):
        return Schema(type=Type.ARRAY, values=schema_of(value[0]) if value else Schema(type=Type.STRING), optional=True)
    return Schema(type=_KINDS.get(type(value), Type.STRING), optional=True)


class Chain:
    """Applies transforms. Owned by one thread. Raises RecordRefused."""

    def __init__(self, specs: Sequence[TransformSpec]) -> None:
        self._specs = specs
        self._known: dict[tuple[str, Schema | None, Schema | None], Callable[[list[Any]], Change | None]] = {}

    def apply(self, topic: str, key: Decoded | None, value: Decoded | None) -> Change | None:
        """The record behind the transforms; None: a Filter drops it."""
        if not self._specs:
            return Change(topic, key, value)
        bare = [half is None or half.schema is None for half in (key, value)]
        key, value = _typed(key), _typed(value)
        shape = (topic, key.schema if key else None, value.schema if value else None)
        if shape not in self._known:
            if len(self._known) > 1000:
                self._known.clear()
            case = grow(_record(*shape), self._specs)
            self._known[shape] = lambda row: _run(case, row)
        try:
            change = self._known[shape]([key.value if key else None, value.value if value else None])
        except RowError as error:
            raise RecordRefused(str(error)) from None
        if change is None:
            return None
        return Change(change.topic, *(_bare(half, is_bare) for half, is_bare in zip(change[1:], bare, strict=True)))


def _bare(half: Decoded | None, is_bare: bool) -> Decoded | None:
    """Without the schema that was only made for the transforms."""
    return half._replace(schema=None) if is_bare and half is not None else half


def _typed(half: Decoded | None) -> Decoded | None:
    return half if half is None or half.schema is not None else Decoded(schema_of(half.value), half.value)


def _record(topic: str, key: Schema | None, value: Schema | None) -> Record:
    null = Constant(schema=Schema(type=Type.STRING, optional=True), java=java_of(Schema(type=Type.STRING)), value=None)
    return Record(
        topic=topic,
        key=None if key is None else _node(key, "0"),
        value=null if value is None else _node(value, "1"),
    )


def _node(schema: Schema, path: str) -> Node:
    """``path``: where the value is, from the row on."""
    if schema.type is Type.STRUCT and not schema.optional:
        members = tuple(_node(field.schema, f"{path}\0{field.name}") for field in schema.fields)
        return StructNode(schema, members)
    if schema.type is Type.STRUCT and path in {"0", "1"}:
        return _node(schema.as_optional(False), path)
    convert = java_value(schema)
    decode = (lambda raw: raw) if convert is None else convert
    return Cell(column=path, kind=Kind.VALUE, schema=schema, java=java_of(schema), decode=decode)


def _run(case: Case, row: list[Any]) -> Change | None:
    while isinstance(case, Fork):
        case = case.null if _value(case.cell, row) is None else case.other
    if isinstance(case, Dropped):
        return None
    if isinstance(case, Failed):
        raise RecordRefused(case.reason)
    assert isinstance(case, Leaf)
    record = case.record
    topic = record.topic if record.dated is None else record.dated(time.time_ns() // 1_000_000)
    value = None if _is_null(record.value) else Decoded(_marked(record.value), _value(record.value, row))
    key = None if record.key is None or _is_null(record.key) else Decoded(_marked(record.key), _value(record.key, row))
    return Change(topic, key, value)


def _is_null(node: Node) -> bool:
    return isinstance(node, Constant) and node.value is None


def _value(node: Node, row: list[Any]) -> Any:
    if isinstance(node, StructNode):
        return {field.name: _value(member, row) for field, member in zip(node.schema.fields, node.members, strict=True)}
    if isinstance(node, Constant):
        return _as_read(node, node.value)
    found: Any = row
    for number, part in enumerate(node.column.split("\0")):
        found = found[int(part)] if number == 0 else found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        return None
    found = node.decode(found)
    for step in node.steps:
        if found is None:
            return None
        found = step.apply(found)
    return _as_read(node, found)


def _as_read(node: Cell | Constant, value: Any) -> Any:
    """A value of Java's in the form in which a decoder gives it."""
    if value is None:
        return None
    if node.java is Java.SQL_TIMESTAMP:
        return value // 1000
    if node.java is Java.SQL_DATE or (
        node.java is Java.DATE and node.schema.name and node.schema.name.endswith("Date")
    ):
        return value // 86_400_000
    return value


def _marked(node: Node) -> Schema:
    if isinstance(node, StructNode):
        fields = tuple(
            Field(field.name, _marked(member)) for field, member in zip(node.schema.fields, node.members, strict=True)
        )
        return Schema(type=Type.STRUCT, name=node.schema.name, fields=fields)
    return node.schema
