"""What a task makes of records: typed rows, or raw ones. Runs in the executors; belongs to one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from compactory.directory import Envelope
from compactory.errors import CompactoryError

from ..export.json_columns import JsonReader, Parsed
from .casting import cast, takes_numbers
from .columns import ERROR, OPERATION

__all__ = ["RowShape", "TypedRows", "raw_rows"]

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_NAMES: Final = {"_value": "value", "_partition": "partition", "_offset": "offset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """What typed rows look like. ``fields`` are those of the values, in JSON's types.

    ``changes``: every record is a row, also one that removes its key.
    """

    schema: pa.Schema
    fields: Mapping[str, pa.DataType]
    envelope: Envelope = "none"
    active: str | None = None
    base64: bool = False
    changes: bool = False


def raw_rows(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of raw records that a schema names."""
    return pa.RecordBatch.from_arrays([_raw(records, name) for name in schema.names], schema=schema)


def _raw(records: pa.RecordBatch, name: str) -> pa.Array:
    if name == "timestamp":
        return _times(records)
    return records.column(name)


def _times(records: pa.RecordBatch) -> pa.Array:
    """The records' times; null for -1, with which Kafka says that there is none."""
    stamps = records.column("timestamp_ms")
    known = np.asarray(stamps) >= 0
    milliseconds = pa.array(np.asarray(stamps), pa.int64(), mask=~known)
    return milliseconds.cast(pa.timestamp("ms", "UTC")).cast(_TIMESTAMP)


def _texts(told: Mapping[int, str], rows: int) -> pa.Array:
    return pa.array([told.get(row) for row in range(rows)], pa.string()) if told else pa.nulls(rows, pa.string())


class TypedRows:
    """Makes the typed rows of one task.

    A value that does not fit is told in the column ``_error``, and its fields are null. Where the schema leaves that
    column out, :meth:`of` raises CompactoryError.
    """

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        self._reader = JsonReader(shape.envelope, shape.active, fixed=True)
        self._fields = dict(shape.fields)

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of these records: of those that live, or with ``changes`` of all."""
        living = np.asarray(records.column("value").is_valid())
        place = np.flatnonzero(living)
        parsed = self._parse(records.column("value").drop_null().to_pylist())
        errors = dict(parsed.errors)
        columns = {name: self._cast(parsed, name, errors) for name in self._shape.fields}
        stays = np.ones(len(place), bool)
        stays[list(parsed.deleted)] = False
        if self._shape.changes:
            from_row = np.full(records.num_rows, -1)
            from_row[place[stays]] = np.flatnonzero(stays)
        else:
            records, from_row = records.take(pa.array(place[stays])), np.flatnonzero(stays)
        taken = pa.array(from_row, mask=from_row < 0)
        told = {row: errors[int(of)] for row, of in enumerate(from_row) if int(of) in errors} if errors else {}
        keys = self._keys(records, told)
        self._refuse_unsaid(records, told)
        found = {name: column.take(taken) for name, column in columns.items()}
        found |= {name: records.column(of) for name, of in _NAMES.items()}
        found |= {"_key": keys, "_timestamp": _times(records), ERROR: _texts(told, records.num_rows)}
        found[OPERATION] = pa.array(np.where(from_row < 0, "delete", "put"), pa.string())
        return pa.RecordBatch.from_arrays([found[name] for name in self._shape.schema.names], schema=self._shape.schema)

    def _parse(self, values: list[bytes]) -> Parsed:
        """The values' fields. A date, time or decimal is expected as before, as a text or a number."""
        parsed = self._reader.parse(values, self._fields)
        if parsed.errors and self._fields != self._shape.fields:
            self._fields = dict(self._shape.fields)
            parsed = self._reader.parse(values, self._fields)
        for name, kind in parsed.found.items():
            both = name in self._fields and takes_numbers(self._shape.schema.field(name).type)
            if both and not self._shape.base64 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                self._fields[name] = kind
        return parsed

    def _cast(self, parsed: Parsed, name: str, errors: dict[int, str]) -> pa.Array:
        kind = self._shape.schema.field(name).type
        column, unfit = cast(parsed.columns[name], kind, base64=self._shape.base64)
        for row in unfit:
            errors.setdefault(row, f"field {name!r} is no {kind}")
        return column

    def _keys(self, records: pa.RecordBatch, told: dict[int, str]) -> pa.Array:
        keys = records.column("key")
        try:
            return keys.cast(pa.string())
        except pa.ArrowException:
            found: list[str | None] = []
            for row, key in enumerate(keys.to_pylist()):
                try:
                    found.append(key.decode())
                except UnicodeDecodeError:
                    found.append(None)
                    told.setdefault(row, "the key is not UTF-8")
            return pa.array(found, pa.string())

    def _refuse_unsaid(self, records: pa.RecordBatch, told: Mapping[int, str]) -> None:
        if told and ERROR not in self._shape.schema.names:
            row, said = next(iter(told.items()))
            partition, offset = (records.column(name)[row].as_py() for name in ("partition", "offset"))
            raise CompactoryError(
                f"partition {partition}, offset {offset}: {said}; have the schema name a column `{ERROR} string` to"
                " get such records as rows without fields"
            )
