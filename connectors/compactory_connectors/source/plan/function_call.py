"""Calls of ``compactory.transform``: a row's values out of the chain, into the user's function, and on to a converter.

What the function leaves as it was is written as without it, to the byte. What it changes must fit the schema, unless
the converter writes JSON without schemas: then a value may be anything that JSON can hold.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..record.converters import Converter
from ..record.converters.json_converter import JsonConverter
from ..record.converters.json_text import json_string
from ..record.record import Record, RowError
from ..record.transforms.function import FunctionTransform, SourceRecord
from .shown_value import Shown, free_json

__all__ = ["compile_call"]

_Row: TypeAlias = Sequence[Any]


def compile_call(
    record: Record, converter: Converter, positions: Mapping[str, int]
) -> Callable[[_Row], tuple[bytes | None] | None]:
    """The function from a raw row to the bytes of its value in a tuple; None where the user's function drops the row.

    It raises RowError where that function raises, changes topic or key, or returns what can't be written.
    """
    transform: FunctionTransform = record.function
    key = Shown(record.key, positions) if record.key is not None else None
    value = Shown(record.value, positions)
    free = isinstance(converter, JsonConverter) and not converter.schemas_enable
    write = _FreeWriter(value, converter) if free else _SchemaWriter(value, converter)

    def call(raw: _Row) -> tuple[bytes | None] | None:
        key_before, before = key.read(raw) if key else None, value.read(raw)
        key_shown = key.shown if key else _no_key
        after = _called(
            transform, SourceRecord(topic=record.topic, key=key_shown(key_before), value=value.shown(before))
        )
        if after is None:
            return None
        if (after.topic, after.key) != (record.topic, key_shown(key_before)):
            raise RowError(f"compactory.transform: {transform.name} must leave topic and key to the transforms")
        return (write.written(after.value, before),)

    return call


def _no_key(value: None) -> None:
    return value


def _called(transform: FunctionTransform, record: SourceRecord) -> SourceRecord | None:
    try:
        after: object = transform.function(record)
    except Exception as error:  # noqa: BLE001 - whatever a function of the user's raises
        raise RowError(f"compactory.transform: {transform.name} raised {_described(error)}") from None
    if not isinstance(after, SourceRecord | None):
        raise RowError(f"compactory.transform: {transform.name} must return the record, or None to drop it")
    return after


def _described(error: Exception) -> str:
    """The kind of exception and where it came from; its text may hold values."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} (in {frame.name}, line {frame.lineno})"


class _SchemaWriter:
    """Writes values that fit the schema, by the converter."""

    def __init__(self, value: Shown, converter: Converter) -> None:
        self._value = value
        self._render = converter.compile(value.stand_in, value.places)

    def written(self, after: Any, before: Any) -> bytes | None:
        """The bytes of a value; None is a tombstone."""
        return None if after is None else self._render(self._value.fitted(after, before))


class _FreeWriter:
    """Writes JSON without schemas: fields that fit the schema by the converter, anything else as it comes."""

    def __init__(self, value: Shown, converter: Converter) -> None:
        self._value = value
        self._parts = {name: _SchemaWriter(part, converter) for name, part in value.parts.items()}
        self._whole = None if value.parts else _SchemaWriter(value, converter)

    def written(self, after: Any, before: Any) -> bytes | None:
        """The bytes of a value; None is a tombstone."""
        if after is None:
            return None
        if self._whole is not None or not isinstance(after, dict):
            return self._fitting(self._whole, after, before)
        fields = (self._field(name, value, (before or {}).get(name)) for name, value in after.items())
        return b"{" + b",".join(fields) + b"}"

    def _field(self, name: Any, after: Any, before: Any) -> bytes:
        if not isinstance(name, str):
            raise RowError("compactory.transform: names of fields must be texts")
        return json_string(name) + b":" + self._fitting(self._parts.get(name), after, before)

    def _fitting(self, part: _SchemaWriter | None, after: Any, before: Any) -> bytes:
        if after is None:
            return b"null"
        if part is not None:
            try:
                return part.written(after, before) or b"null"
            except RowError:
                pass  # another type than the column's: without a schema it may be
        return free_json(after)
