"""JSON values as typed columns: a block at a time by Arrow's reader, one by one where that can't tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import json as arrow_json
from pyspark.sql.pandas.types import from_arrow_type

from compactory.codec.decoding import document_reader, field_reader
from compactory.directory import Envelope

from .json_types import as_json, conform, infer, known, merged, nameable, settled, spelt

__all__ = ["Fields", "JsonReader", "Parsed"]

Fields: TypeAlias = Mapping[str, pa.DataType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Values as columns, a row each. ``found`` are the types that their fields need."""

    columns: Mapping[str, pa.Array]
    found: Fields = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    """Rows that can't be read, and why; their columns are null."""
    deleted: frozenset[int] = frozenset()
    """Rows that say that they are deleted: by their envelope, or by JSON false in the field ``active``."""


class JsonReader:
    """Reads the values of a directory, as stores do."""

    def __init__(self, envelope: Envelope = "none", active: str | None = None, *, fixed: bool = False) -> None:
        self._fixed = fixed
        self._unwrap = document_reader(envelope)
        self._active = active
        self._active_of = field_reader(active) if active is not None else None
        # Arrow's reader sees neither into envelopes nor, for a store finds such names first, names with dots.
        self._by_block = envelope == "none" and "." not in (active or "")

    def parse(self, values: Sequence[bytes], fields: Fields) -> Parsed:
        """Columns for these fields, of their types as `json_types.settled` has them.

        What does not fit its column is null there: ``found`` tells what would, or the row's error where fields are
        ``fixed``.
        """
        found = self._block(values, fields) if values and self._by_block else None
        return found if found is not None else self._each(values, fields)

    def _block(self, values: Sequence[bytes], fields: Fields) -> Parsed | None:
        """All at once; None where Arrow's reader refuses, or would be less strict than a store.

        Each value has to begin and end as an object does: then no two can make one, nor one several and another none.
        The reader replaces what is not UTF-8, takes NaN and infinities for numbers, and ends the process at a ``null``
        in the first place (Arrow 26).
        """
        block = b"\n".join(values)
        lines = block.count(b"\n") < len(values)
        if b"NaN" in block or b"Inf" in block or not _of_objects(block, values, lines=lines):
            return None
        try:
            block.decode()
            table = _read(block, fields, lines=lines)
            table.validate(full=any(map(pa.types.is_nested, table.schema.types)))  # some lists come out too short
            found = {item.name: as_json(item.type) for item in table.schema}
        except (ValueError, pa.ArrowException):  # not UTF-8, or too many levels
            return None
        if table.num_rows != len(values) or not all(map(nameable, found.values())):
            return None
        columns = {name: _only(table.column(name)) for name in table.column_names}
        if any(name in columns and found[name] != columns[name].type for name in fields):
            return None  # texts that were taken for times are not as they were any more
        try:
            kept = {name: _fitting(columns.get(name), settled(kind), len(values)) for name, kind in fields.items()}
        except ValueError:
            return None
        return Parsed(columns=kept, found=found, deleted=_false(columns.get(self._active or "")))

    def _each(self, values: Sequence[bytes], fields: Fields) -> Parsed:
        errors: dict[int, str] = {}
        deleted: set[int] = set()
        found: Fields = {}
        documents: list[dict[str, Any]] = []
        for row, value in enumerate(values):
            documents.append({})
            try:
                content = self._unwrap(value)
                if content is None or (self._active_of is not None and self._active_of(content) is False):
                    deleted.add(row)
                found = merged(found, {name: infer(item) for name, item in (content or {}).items()})
            except ValueError as error:
                if row not in deleted:
                    errors[row] = str(error)
                continue
            documents[row] = content or {}
        columns: dict[str, pa.Array] = {}
        for name, kind in fields.items():
            fitting: list[Any] = []
            for row, content in enumerate(documents):
                try:
                    fitting.append(conform(content.get(name), settled(kind)))
                except ValueError:
                    fitting.append(None)
                    if self._fixed:
                        errors.setdefault(row, f"field {name!r} is not of type {spelt(from_arrow_type(kind))}")
            columns[name] = pa.array(fitting, settled(kind))
        return Parsed(columns=columns, found=found, errors=errors, deleted=frozenset(deleted))


def _of_objects(block: bytes, values: Sequence[bytes], *, lines: bool) -> bool:
    """Whether each value begins and ends as an object; without line ends of their own seen at the joints."""
    if lines:
        return block[:1] == b"{" and block[-1:] == b"}" and block.count(b"}\n{") == len(values) - 1
    return all(value[:1] == b"{" and value[-1:] == b"}" for value in values)


def _read(block: bytes, fields: Fields, *, lines: bool) -> pa.Table:
    explicit = {name: known(kind) for name, kind in fields.items()}
    return arrow_json.read_json(
        BytesIO(block),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema([(name, kind) for name, kind in explicit.items() if kind is not None]),
            newlines_in_values=not lines,
            unexpected_field_behavior="infer",
        ),
    )


def _only(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _fitting(column: pa.Array | None, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of this type: one may have come with more fields than it is to have, or with none. Raises ValueError."""
    if column is None or pa.types.is_null(column.type):
        return pa.nulls(rows, kind)
    return column if column.type == kind else pa.array([conform(item, kind) for item in column.to_pylist()], kind)


def _false(column: pa.Array | None) -> frozenset[int]:
    if column is None or not pa.types.is_boolean(column.type) or column.false_count == 0:
        return frozenset()
    return frozenset(row for row, value in enumerate(column.to_pylist()) if value is False)
