"""Calls of ``compactory.transform``: a row's values out of the chain, into the user's function, and on into JSON.

A field that the function leaves as it was is written as without it, to the byte. Anything else may be whatever JSON can
hold, for its records have no schema.
"""

from __future__ import annotations

import traceback
from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from compactory_connectors.connect.converters import Converter
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.json_value import finite, json_string, scale_of, value_writer
from compactory_connectors.connect.javatext.java_number import double_text_of
from compactory_connectors.connect.record.record import Java, Node, Record, RowError, StructNode
from compactory_connectors.connect.record.row_value import Row, value_reader
from compactory_connectors.connect.record.schema import DECIMAL
from compactory_connectors.connect.transforms.function import FunctionTransform, SourceRecord

__all__ = ["class_and_place", "compile_call"]


def compile_call(
    record: Record, converter: Converter, positions: Mapping[str, int]
) -> Callable[[Row], tuple[bytes | None] | None]:
    """Return the function from a raw row to the bytes of its value, in a tuple; to None where the row is dropped.

    It raises RowError where that function raises, changes topic or key, or returns a value that can't be written.
    """
    assert isinstance(converter, JsonConverter), "the configuration was checked"
    transform: FunctionTransform = record.function
    key = value_reader(record.key, positions) if record.key is not None else (lambda _: None)
    read, value = value_reader(record.value, positions), _Value(record.value, converter, positions)

    def call(raw: Row) -> tuple[bytes | None] | None:
        own_key, original = key(raw), read(raw)
        returned = _called(
            transform, SourceRecord(topic=record.topic, key=key(raw), value=read(raw))
        )  # copies to change
        if returned is None:
            return None
        if (returned.topic, returned.key) != (record.topic, own_key):
            raise RowError(f"compactory.transform: {transform.name} must leave topic and key to the transforms")
        return (None if returned.value is None else value.to_json(returned.value, original, raw),)

    return call


def _called(transform: FunctionTransform, record: SourceRecord) -> SourceRecord | None:
    try:
        returned: object = transform.function(record)
    except Exception as error:  # noqa: BLE001 - whatever a function of the user's raises
        raise RowError(f"compactory.transform: {transform.name} raised {class_and_place(error)}") from None
    if not isinstance(returned, SourceRecord | None):
        raise RowError(f"compactory.transform: {transform.name} must return the record, or None to drop it")
    return returned


def class_and_place(error: Exception) -> str:
    """Return the class of an exception and where it was raised. Its text may hold values and is left out."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} (in {frame.name}, line {frame.lineno})"


class _Value:
    """Writes a value of the chain's result after the user's function has seen it."""

    def __init__(self, node: Node, converter: JsonConverter, positions: Mapping[str, int]) -> None:
        self._render = converter.compile(node, positions)
        members = node.items() if isinstance(node, StructNode) else ()
        self._parts = {name: _Value(member, converter, positions) for name, member in members}
        self._decimal = _decimal(node, converter) if node.schema.name == DECIMAL else None

    def to_json(self, returned: Any, original: Any, raw: Row) -> bytes:
        """Return the JSON of ``returned``, which was ``original`` in the row."""
        if self._parts and isinstance(returned, dict):
            fields = ((name, self._field(name, value, original or {}, raw)) for name, value in returned.items())
            return b"{" + b",".join(_name(name) + value for name, value in fields) + b"}"
        if type(returned) is type(original) and returned == original:
            return self._render(raw) or b"null"
        if self._decimal and isinstance(returned, int | Decimal) and not isinstance(returned, bool):
            return self._decimal(returned)
        return _json(returned)

    def _field(self, name: Any, returned: Any, original: Mapping[str, Any], raw: Row) -> bytes:
        part = self._parts.get(name)
        return _json(returned) if part is None else part.to_json(returned, original.get(name), raw)


def _decimal(node: Node, converter: JsonConverter) -> Callable[[int | Decimal], bytes]:
    """Return the function that writes a number as the column's others. It raises RowError rather than round."""
    write = value_writer(node.schema, Java.DECIMAL, numeric=converter.numeric)
    exponent = Decimal((0, (1,), -scale_of(node.schema)))

    def written(value: int | Decimal) -> bytes:
        try:
            fitted = Decimal(value).quantize(exponent)
        except InvalidOperation:
            fitted = None
        if fitted != value or fitted is None:
            raise RowError("compactory.transform: a number has more digits than its NUMERIC column")
        return write(fitted)

    return written


def _name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise RowError("compactory.transform: names of fields must be texts")
    return json_string(name) + b":"


def _json(value: Any) -> bytes:
    """Return the JSON of a value without a schema, as JsonConverter has it. Raises RowError for other classes."""
    if value is None:
        return b"null"
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return json_string(value)
    if isinstance(value, Decimal) and not value.is_finite():
        return json_string("NaN" if value.is_nan() else str(value))  # quoted, as NaN and infinities of floats are
    if isinstance(value, int | Decimal):
        return str(value).encode()
    if isinstance(value, float):
        return finite(double_text_of(value))
    if isinstance(value, bytes):
        return b'"%b"' % b64encode(value)
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(_json, value)) + b"]"
    if isinstance(value, dict):
        return b"{" + b",".join(_name(name) + _json(item) for name, item in value.items()) + b"}"
    raise RowError(f"compactory.transform: JSON can't hold a value of class {type(value).__name__}")
