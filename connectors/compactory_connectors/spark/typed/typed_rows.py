"""A task makes typed rows of records. Runs in the executors; belongs to one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from compactory.directory import Envelope
from compactory.errors import CompactoryError

from .casting import cast, takes_numbers
from .json_columns import Fields, JsonReader, Parsed
from .json_types import spelt

__all__ = ["ERROR", "OPERATION", "VALIDITY", "RowShape", "TypedRows", "times"]

ERROR: Final = "_error"
OPERATION: Final = "_op"
VALIDITY: Final = ("_valid_from", "_valid_to")
"""Columns of rows that are versions, and of their records, there in milliseconds."""
_DECIMAL: Final = ", or not for sure: say how the topic has decimals by option decimal = number or base64"
_OF_RECORDS: Final = {
    "_value": "value",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp_ms": "timestamp_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """The shape of typed rows. ``fields`` are those of the values, in JSON's types.

    ``changes``: every record is a row, also one that removes its key.
    """

    schema: pa.Schema
    fields: Fields
    fixed: bool = True
    """The fields were given, not found: a value that does not fit one is an error of its row."""
    envelope: Envelope = "none"
    active: str | None = None
    base64: bool | None = None
    """Decimals are texts of Base64; None: not known, so a text that may be either is an error of its row."""
    changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """Rows, the record of each, and whether it is an entry; errors by row; the types that the fields need."""

    rows: pa.RecordBatch
    records: pa.RecordBatch
    lives: npt.NDArray[np.bool_]
    errors: Mapping[int, str]
    found: Fields


def times(records: pa.RecordBatch) -> pa.Array:
    """The records' times; null for -1, with which Kafka says that there is none."""
    stamps = np.asarray(records.column("timestamp_ms"))
    return _moments(pa.array(stamps, pa.int64(), mask=stamps < 0))


def _moments(milliseconds: pa.Array) -> pa.Array:
    return milliseconds.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


class TypedRows:
    """Makes the typed rows of one task.

    A value that does not fit is told in the column ``_error``, and its fields are null. Where the schema leaves that
    column out, :meth:`of` raises CompactoryError.
    """

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        self._reader = JsonReader(shape.envelope, shape.active, fixed=shape.fixed)
        self._fields = dict(shape.fields)

    def of(self, records: pa.RecordBatch) -> Typed:
        """The rows of these records: of those that live, or with ``changes`` of all."""
        place = np.flatnonzero(records.column("value").is_valid())
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
        lives = from_row >= 0
        taken = pa.array(from_row, mask=~lives)
        told = {row: errors[int(of)] for row, of in enumerate(from_row) if int(of) in errors} if errors else {}
        found = {"_key": self._keys(records, told)}
        self._refuse_unsaid(records, told)
        found |= {name: column.take(taken) for name, column in columns.items()}
        said = [told.get(row) for row in range(len(lives))] if told else pa.nulls(len(lives))
        found[ERROR] = pa.array(said, pa.string())
        if OPERATION in self._shape.schema.names:
            found[OPERATION] = pa.array(np.where(lives, "put", "delete"), pa.string())
        rows = [found[name] if name in found else _own(records, name) for name in self._shape.schema.names]
        return Typed(
            rows=pa.RecordBatch.from_arrays(rows, schema=self._shape.schema),
            records=records,
            lives=lives,
            errors=told,
            found=parsed.found,
        )

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
        remedy = _DECIMAL if pa.types.is_decimal(kind) and self._shape.base64 is None else ""
        for row in unfit:
            errors.setdefault(row, f"field {name!r} is not of type {spelt(from_arrow_type(kind))}{remedy}")
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
                f"partition {partition}, offset {offset}: {said}. With a column `{ERROR} string` in the schema"
                " such records become rows without fields"
            )


def _own(records: pa.RecordBatch, name: str) -> pa.Array:
    """A column of the record's own."""
    if name == "_timestamp":
        return times(records)
    return _moments(records.column(name)) if name in VALIDITY else records.column(_OF_RECORDS[name])
