"""Values → typed columns: a block of JSON at a time by Arrow's reader, one by one where that refuses. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import json as arrow_json
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from compactory.codec.decoding import document_reader, field_reader
from compactory.directory import Envelope
from compactory.errors import DecodeError

from .conversion import Convert, converter_of, type_text

__all__ = ["Document", "ReadDocument", "ValueColumns", "ValueReader", "arrow_schema"]

Document: TypeAlias = dict[str, Any]
ReadDocument: TypeAlias = Callable[[bytes], Document | None]
"""The function from a value to its fields; None for a deletion. Raises ValueError for a value that can't be read."""

_AMBIGUOUS: Final = re.compile(rb':\s*"\+?(?:[0-9eE+]{4})+"')
"""Texts that may be a number or Base64."""
_TEMPORAL: Final[tuple[type[t.DataType], ...]] = (t.DateType, t.TimestampType, t.TimestampNTZType)
_DECIMAL_HINT: Final = ", or not for sure: say how the topic has decimals by option decimal = number or base64"
_FAILURES: Final = (ValueError, TypeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueColumns:
    """Values as columns, a row each."""

    columns: Mapping[str, pa.Array]
    errors: Mapping[int, str]
    """Rows that can't be read, and why; their columns are null."""
    deleted: frozenset[int]
    """Rows that remove their key: by their envelope, or by JSON false in the field ``active``."""


def arrow_schema(columns: t.StructType) -> pa.Schema:
    """Return the schema of the batches that Spark expects for these columns."""
    return to_arrow_schema(columns, timezone="UTC")


class ValueReader:
    """Reads the fields of values as stores do. Belongs to one task.

    ``read_document`` replaces JSON in the ``envelope``. ``base64``: decimals are texts of Base64; None: nobody has
    said, so a text that may be either is an error of its row.
    """

    def __init__(
        self,
        fields: t.StructType,
        *,
        envelope: Envelope = "none",
        active: str | None = None,
        base64: bool | None = None,
        read_document: ReadDocument | None = None,
    ) -> None:
        self._types = arrow_schema(fields)
        self._converters: dict[str, Convert] = {
            field.name: converter_of(field.name, field.dataType, base64=base64) for field in fields.fields
        }
        self._texts = {
            field.name: type_text(field.dataType)
            + (_DECIMAL_HINT if isinstance(field.dataType, t.DecimalType) and base64 is None else "")
            for field in fields.fields
        }
        has_decimals = any(_contains(field.dataType, (t.DecimalType,)) for field in fields.fields)
        exact = has_decimals and envelope == "none"
        self._read = read_document or (_read_exact_object if exact else document_reader(envelope))
        self._is_active = field_reader(active) if active is not None else None
        self._ambiguous = has_decimals and base64 is None
        self._active = active
        self._temporal = [field.name for field in fields.fields if isinstance(field.dataType, _TEMPORAL)]
        self._block_types: dict[str, pa.DataType] | None = None
        if envelope == "none" and read_document is None and "." not in (active or ""):
            self._block_types = _block_types(fields, active, base64)

    def read(self, values: Sequence[bytes]) -> ValueColumns:
        columns = self._read_block(values) if values and self._block_types is not None else None
        return columns or self._read_each(values)

    def _read_block(self, values: Sequence[bytes]) -> ValueColumns | None:
        """Return all values at once; None where Arrow's reader refuses, or would be less strict than a store.

        Each value has to begin and end as an object: then no two can make one, nor one several and another none. The
        reader replaces what is not UTF-8, takes NaN and infinities for numbers, and ends the process at a ``null`` in
        the first place (Arrow 26).
        """
        assert self._block_types is not None
        block = b"\n".join(values)
        has_inner_lines = block.count(b"\n") >= len(values)
        if b"NaN" in block or b"Inf" in block or not _are_objects(block, values, has_inner_lines):
            return None
        if self._ambiguous and _AMBIGUOUS.search(block):
            return None
        try:
            block.decode()
            table = _read_json(block, self._block_types | self._temporal_types(values[0]), has_inner_lines)
            table.validate(full=any(map(pa.types.is_nested, table.schema.types)))  # some lists come out too short
            columns = {field.name: self._as_type(_single(table.column(field.name)), field) for field in self._types}
        except (*_FAILURES, pa.ArrowException):
            return None
        if table.num_rows != len(values):
            return None
        deleted = _rows_of_false(_single(table.column(self._active))) if self._active is not None else frozenset()
        return ValueColumns(columns=columns, errors={}, deleted=deleted)

    def _as_type(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """Return dates and times of texts or of Connect's numbers, and what Base64 encodes. Other columns stay."""
        kind = field.type
        if column.type == kind:
            return column
        if pa.types.is_date(kind) and pa.types.is_integer(column.type):
            return column.cast(pa.int32()).cast(kind)
        if pa.types.is_integer(column.type):
            return column.cast(pa.timestamp("ms", kind.tz)).cast(kind)
        if pa.types.is_temporal(kind):
            return column.cast(kind)
        return pa.array(map(self._converters[field.name], column.to_pylist()), kind)

    def _temporal_types(self, value: bytes) -> dict[str, pa.DataType]:
        """Return the types in which dates and times are expected: as the first value has them, texts or numbers."""
        document = msgspec.json.decode(value) if self._temporal else {}
        return {name: pa.int64() if isinstance(document.get(name), int) else pa.string() for name in self._temporal}

    def _read_each(self, values: Sequence[bytes]) -> ValueColumns:
        errors: dict[int, str] = {}
        deleted: set[int] = set()
        rows: dict[str, list[Any]] = {name: [None] * len(values) for name in self._converters}
        for row, value in enumerate(values):
            try:
                document = self._read(value)
                if document is None or (self._is_active is not None and self._is_active(document) is False):
                    deleted.add(row)
                    continue
            except _FAILURES as error:
                errors[row] = str(error) or type(error).__name__
                continue
            errors |= self._read_fields(row, document, rows)
        columns = {field.name: pa.array(rows[field.name], field.type) for field in self._types}
        return ValueColumns(columns=columns, errors=errors, deleted=frozenset(deleted))

    def _read_fields(self, row: int, document: Document, rows: Mapping[str, list[Any]]) -> dict[int, str]:
        """Set the fields of a row, or return its error."""
        for name, convert in self._converters.items():
            try:
                value = document.get(name)
                rows[name][row] = None if value is None else convert(value)
                if value is not None:
                    pa.scalar(rows[name][row], self._types.field(name).type)  # to see that it fits
            except (*_FAILURES, pa.ArrowException):
                for column in rows.values():
                    column[row] = None
                return {row: f"field {name!r} is not of type {self._texts[name]}"}
        return {}


_decode_exact = msgspec.json.Decoder(float_hook=Decimal).decode


def _read_exact_object(value: bytes) -> Document:
    """Return a JSON object whose numbers with a fraction keep every digit."""
    document = _decode_exact(value)
    if not isinstance(document, dict):
        raise DecodeError("the value is not a JSON object")
    return document


def _contains(kind: t.DataType, types: tuple[type[t.DataType], ...]) -> bool:
    if isinstance(kind, t.ArrayType):
        return _contains(kind.elementType, types)
    if isinstance(kind, t.StructType):
        return any(_contains(field.dataType, types) for field in kind.fields)
    return isinstance(kind, types)


def _block_types(fields: t.StructType, active: str | None, base64: bool | None) -> dict[str, pa.DataType] | None:
    """Return the types in which Arrow's reader reads the fields; None where it can't read one of them as a store does.

    Base64 is read as text. The reader knows neither maps, nor Base64, dates and times within objects and lists.
    """
    encoded: tuple[type[t.DataType], ...] = (t.BinaryType, *((t.DecimalType,) if base64 else ()))
    types: dict[str, pa.DataType] = {} if active is None else {active: pa.bool_()}
    for field in fields.fields:
        is_nested = isinstance(field.dataType, t.ArrayType | t.StructType)
        if _contains(field.dataType, (t.MapType,)) or (is_nested and _contains(field.dataType, (*encoded, *_TEMPORAL))):
            return None
        if field.name == active and not isinstance(field.dataType, t.BooleanType):
            return None
        arrow_type = arrow_schema(t.StructType([field])).field(0).type
        types[field.name] = pa.string() if isinstance(field.dataType, encoded) else arrow_type
    return types


def _are_objects(block: bytes, values: Sequence[bytes], has_inner_lines: bool) -> bool:
    """Return True if each value begins and ends as an object; without inner line ends that shows at the joints."""
    if has_inner_lines:
        return all(value[:1] == b"{" and value[-1:] == b"}" for value in values)
    return block[:1] == b"{" and block[-1:] == b"}" and block.count(b"}\n{") == len(values) - 1


def _read_json(block: bytes, types: Mapping[str, pa.DataType], has_inner_lines: bool) -> pa.Table:
    return arrow_json.read_json(
        BytesIO(block),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(list(types.items())),
            newlines_in_values=has_inner_lines,
            unexpected_field_behavior="ignore",
        ),
    )


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _rows_of_false(column: pa.Array) -> frozenset[int]:
    if column.false_count == 0:
        return frozenset()
    return frozenset(row for row, value in enumerate(column.to_pylist()) if value is False)
