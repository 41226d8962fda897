"""Records → typed rows. Runs in the executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from compactory.errors import CompactoryError

from .values import ValueReader

__all__ = ["ERROR", "OPERATION", "TypedRows", "timestamps"]

ERROR: Final = "_error"
OPERATION: Final = "_op"
_RECORD_COLUMNS: Final = {"_value": "value", "_partition": "partition", "_offset": "offset"}


def timestamps(records: pa.RecordBatch) -> pa.Array:
    """Return the records' times; null for -1, by which Kafka says that there is none."""
    stamps = np.asarray(records.column("timestamp_ms"))
    millis = pa.array(stamps, pa.int64(), mask=stamps < 0)
    return millis.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


class TypedRows:
    """Makes typed rows in the columns of ``schema``. Belongs to one task.

    ``changes``: each record is a row, also one that removes its key. The reason of a value that can't be read is in the
    column ``_error``, and its fields are null. Without that column `of` raises CompactoryError.
    """

    def __init__(self, schema: pa.Schema, reader: ValueReader, topic: str, *, changes: bool = False) -> None:
        self._schema = schema
        self._reader = reader
        self._topic = topic
        self._changes = changes

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of these records: of those that are entries, or of all changes."""
        positions = np.flatnonzero(records.column("value").is_valid())
        values = self._reader.read(records.column("value").drop_null().to_pylist())
        stays = np.ones(len(positions), bool)
        stays[list(values.deleted)] = False
        if self._changes:
            value_rows = np.full(records.num_rows, -1)
            value_rows[positions[stays]] = np.flatnonzero(stays)
        else:
            records, value_rows = records.take(pa.array(positions[stays])), np.flatnonzero(stays)
        is_entry = value_rows >= 0
        errors = {row: values.errors[int(of)] for row, of in enumerate(value_rows) if int(of) in values.errors}
        columns = {"_key": _keys(records, errors)}
        self._refuse(records, errors)
        indices = pa.array(value_rows, mask=~is_entry)
        columns |= {name: column.take(indices) for name, column in values.columns.items()}
        texts = [errors.get(row) for row in range(len(is_entry))] if errors else pa.nulls(len(is_entry))
        columns[ERROR] = pa.array(texts, pa.string())
        if OPERATION in self._schema.names:
            columns[OPERATION] = pa.array(np.where(is_entry, "put", "delete"), pa.string())
        rows = [columns[name] if name in columns else self._own(records, name) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(rows, schema=self._schema)

    def _own(self, records: pa.RecordBatch, name: str) -> pa.Array:
        if name == "_timestamp":
            return timestamps(records)
        if name == "_topic":
            return pa.array([self._topic] * records.num_rows, pa.string())
        return records.column(_RECORD_COLUMNS[name])

    def _refuse(self, records: pa.RecordBatch, errors: Mapping[int, str]) -> None:
        if not errors or ERROR in self._schema.names:
            return
        row, error = next(iter(errors.items()))
        partition, offset = (records.column(name)[row].as_py() for name in ("partition", "offset"))
        raise CompactoryError(
            f"topic {self._topic!r}, partition {partition}, offset {offset}: {error}. With a column `{ERROR} string` in"
            " the schema such records become rows without fields"
        )


def _keys(records: pa.RecordBatch, errors: dict[int, str]) -> pa.Array:
    keys = records.column("key")
    try:
        return keys.cast(pa.string())
    except pa.ArrowException:
        texts: list[str | None] = []
        for row, key in enumerate(keys.to_pylist()):
            try:
                texts.append(key.decode())
            except UnicodeDecodeError:
                texts.append(None)
                errors.setdefault(row, "the key is not UTF-8")
        return pa.array(texts, pa.string())
