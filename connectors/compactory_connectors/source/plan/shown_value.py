"""Values as ``compactory.transform`` shows them to a function, and back again.

A timestamp is milliseconds there, but here it may be a ``java.sql.Timestamp`` with microseconds: a value that comes
back as it was shown is the one that it was.
"""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from ..javatext.java_calendar import MILLIS_PER_DAY
from ..javatext.java_number import double_text_of
from ..record.converters.json_text import finite, json_string
from ..record.record import Cell, Constant, Java, Kind, Node, RowError, StructNode
from ..record.schema import DATE, Schema, Type
from ..record.transforms.cast import float32

__all__ = ["Shown", "free_json"]

_BITS = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
_NESTED = {Type.ARRAY, Type.MAP, Type.STRUCT}
_DATES = {Java.SQL_DATE, Java.SQL_TIME, Java.DATE}


class Shown:
    """A node of the chain's result: its value in a row, as a function sees it, and what the function makes of it.

    ``read`` takes a row to the value, ``shown`` the value to what the function sees. ``stand_in`` is the same node over
    a row of values in place of columns; ``places`` says where in it each stands. ``parts`` are the members of a struct.
    """

    def __init__(self, node: Node, positions: Mapping[str, int]) -> None:
        self._node = node
        self.parts = _parts(node, positions)
        self.read = _reader(node, self.parts, positions)
        self.shown = _shower(node, self.parts)
        self.places: dict[str, int] = {}
        self.stand_in = _stand_in(node, self.places)

    def fitted(self, after: Any, before: Any) -> list[Any]:
        """The row of values for ``stand_in``. Raises RowError for a value that does not fit the schema."""
        return list(self._fitted(after, before, ""))

    def _fitted(self, after: Any, before: Any, name: str) -> Iterator[Any]:
        node = self._node
        if not isinstance(node, StructNode):
            yield before if _unchanged(after, self.shown(before)) else _fit(after, node, name)
            return
        if node.when is not None:
            yield None if after is None else True
        elif after is None:
            raise RowError(f"compactory.transform: {name or 'the value'} must not be null")
        if not isinstance(after, dict | None):
            raise RowError(f"compactory.transform: {name or 'the value'} must be a dict, as its schema is a struct")
        if unknown := [field for field in after or {} if field not in self.parts]:
            raise RowError(f"compactory.transform: the schema has no field {unknown[0]}; add it with InsertField")
        for field, part in self.parts.items():
            yield from part._fitted((after or {}).get(field), (before or {}).get(field), field)  # noqa: SLF001


def _parts(node: Node, positions: Mapping[str, int]) -> dict[str, Shown]:
    if not isinstance(node, StructNode):
        return {}
    members = zip(node.schema.fields, node.members, strict=True)
    return {item.name: Shown(member, positions) for item, member in members}


def _reader(node: Node, parts: Mapping[str, Shown], positions: Mapping[str, int]) -> Callable[[Sequence[Any]], Any]:
    if isinstance(node, Constant):
        return lambda _: node.value
    if isinstance(node, Cell):
        return _cell_reader(node, positions)
    when = None if node.when is None else _cell_reader(node.when, positions)

    def read(raw: Sequence[Any]) -> Any:
        if when is not None and when(raw) is None:
            return None
        return {name: part.read(raw) for name, part in parts.items()}

    return read


def _cell_reader(cell: Cell, positions: Mapping[str, int]) -> Callable[[Sequence[Any]], Any]:
    position, steps = positions[cell.column], (cell.decode, *(step.apply for step in cell.steps))

    def read(raw: Sequence[Any]) -> Any:
        value = raw[position]
        for step in steps:
            if value is None:
                return None
            value = step(value)
        return value

    return read


def _stand_in(node: Node, places: dict[str, int]) -> Node:
    """The node over values; ``places`` is filled in the order in which ``Shown.fitted`` yields them."""
    if isinstance(node, StructNode):
        when = None if node.when is None else _place(node.when.schema, node.when.java, places)
        return replace(node, when=when, members=tuple(_stand_in(member, places) for member in node.members))
    return _place(node.schema, node.java, places)


def _place(schema: Schema, java: Java, places: dict[str, int]) -> Cell:
    name = str(len(places))
    places[name] = len(places)
    return Cell(column=name, kind=Kind.VALUE, schema=schema, java=java, decode=_as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _unchanged(after: Any, shown: Any) -> bool:
    return type(after) is type(shown) and bool(after == shown)


def _shower(node: Node, parts: Mapping[str, Shown]) -> Callable[[Any], Any]:
    if isinstance(node, StructNode):
        members = [(name, part.shown) for name, part in parts.items()]
        return lambda value: None if value is None else {name: show(value[name]) for name, show in members}
    if node.java is Java.SQL_TIMESTAMP:
        return _per(1000)
    if node.java in _DATES and node.schema.name == DATE:
        return _per(MILLIS_PER_DAY)
    return copy.deepcopy if node.schema.type in _NESTED else _as_it_is


def _per(unit: int) -> Callable[[int | None], int | None]:
    return lambda value: None if value is None else value // unit


def _fit(value: Any, node: Cell | Constant, name: str) -> Any:
    if value is None and node.schema.optional:
        return None
    fitted = _fitting(value, node.java, node.schema)
    if fitted is None:
        what = "must not be null" if value is None else f"does not fit the schema: {node.schema.type.value}"
        raise RowError(f"compactory.transform: {name or 'the value'} {what}")
    return fitted


def _fitting(value: Any, java: Java, schema: Schema) -> Any:
    """``value`` as this class has it, or None when it can't be."""
    if java is Java.BOOLEAN:
        return value if isinstance(value, bool) else None
    if java is Java.DECIMAL:
        return _decimal(value, schema)
    if isinstance(value, bool):
        return None
    if java is Java.STRING:
        return value if isinstance(value, str) else None
    if java is Java.BYTES:
        return value if isinstance(value, bytes) else None
    if java in {Java.FLOAT, Java.DOUBLE}:
        number = float(value) if isinstance(value, int | float) else None
        return number if number is None or java is Java.DOUBLE else float32(number)
    bits = _BITS.get(schema.type)
    if bits is None or not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
        return None
    if java is Java.SQL_TIMESTAMP:
        return value * 1000
    return value * MILLIS_PER_DAY if java in _DATES and schema.name == DATE else value


def _decimal(value: Any, schema: Schema) -> Decimal | None:
    """The number at the schema's scale, if that takes no rounding."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    scale = int(dict(schema.parameters).get("scale", "0"))
    try:
        fitted = Decimal(value).quantize(Decimal((0, (1,), -scale)))
    except InvalidOperation:
        return None
    return fitted if fitted == value else None


def free_json(value: Any) -> bytes:
    """JSON of a value without a schema, as JsonConverter writes maps and lists. Raises RowError for other classes."""
    if value is None:
        return b"null"
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, int | Decimal):
        return str(value).encode()
    if isinstance(value, float):
        return finite(double_text_of(value))
    if isinstance(value, bytes):
        return b'"%b"' % b64encode(value)
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(free_json, value)) + b"]"
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return b"{" + b",".join(json_string(name) + b":" + free_json(item) for name, item in value.items()) + b"}"
    raise RowError(f"compactory.transform: JSON can't hold a value of class {type(value).__name__}")
