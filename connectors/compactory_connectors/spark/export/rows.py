"""What a task of an export does with records: keys, values and typed columns as rows of files, counted on the way.

Runs in the executors. What it counts goes to an accumulator, which takes each task of the job that writes the files
once, however often it was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from compactory.directory import Envelope

from ..identifier import quoted
from ..record_batch import Batches, Task
from ..topic.partition_homes import strays
from .json_columns import JsonReader, Parsed
from .json_types import merged, settled, spelt
from .manifest import Export
from .tally import MOST_PLACES, BadPlace, Tally, digest_sums

__all__ = ["OPERATION", "VALIDITY", "Shape", "rows"]

OPERATION: Final = "_op"
VALIDITY: Final = ("_valid_from_ms", "_valid_to_ms")
_DELETE, _PUT = "delete", "put"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What rows look like: columns of the values' fields, then those of the record, whose names begin with ``_``.

    Of :data:`Export.CHANGES` removed keys are rows too (``_op`` is ``delete``); of :data:`Export.HISTORY` records have
    ``_valid_from_ms`` and ``_valid_to_ms`` as well.
    """

    fields: Mapping[str, pa.DataType] = field(default_factory=dict)
    fixed: bool = False
    """The fields were given, not found: a value that does not fit one is an error of its row."""
    envelope: Envelope = "none"
    active: str | None = None
    export: Export = Export.FULL
    partitions: int = 1

    @property
    def schema(self) -> pa.Schema:
        """The columns, as Arrow has them."""
        first = [(OPERATION, pa.string())] if self.export is Export.CHANGES else []
        between = [(name, pa.int64()) for name in VALIDITY] if self.export is Export.HISTORY else []
        own = [
            ("_key", pa.string()),
            ("_value", pa.binary()),
            ("_partition", pa.int32()),
            ("_offset", pa.int64()),
            ("_timestamp_ms", pa.int64()),
            *between,
            ("_error", pa.string()),
        ]
        fields = [(name, settled(kind)) for name, kind in self.fields.items()]
        return pa.schema([*fields, *first, *own])

    @property
    def spark(self) -> str:
        """The columns, as Spark spells them."""
        own = {pa.binary(): "binary", pa.int32(): "int"}
        return ", ".join(f"{quoted(item.name)} {own.get(item.type) or spelt(item.type)}" for item in self.schema)


def rows(shape: Shape, count: Callable[[Tally], None]) -> Task:
    """The function of a task: takes records, one a key, and gives rows; calls ``count`` at its end."""

    def make(batches: Batches) -> Batches:
        maker = _Rows(shape)
        for batch in batches:
            made = maker.of(batch)
            if made.num_rows:
                yield made
        count(maker.tally)

    return make


class _Rows:
    """Makes the rows of one task."""

    def __init__(self, shape: Shape) -> None:
        self.tally = Tally()
        self._shape = shape
        self._reader = JsonReader(shape.envelope, shape.active, fixed=shape.fixed)

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows == 0:
            return pa.RecordBatch.from_pylist([], self._shape.schema)
        self.tally += Tally(strays=self._strays(records))
        records = self._with_text_keys(records)
        values = records.column("value")
        living = values.is_valid().to_numpy(zero_copy_only=False)
        self.tally.tombstones += records.num_rows - int(living.sum())
        parsed = self._reader.parse(values.drop_null().to_pylist(), self._shape.fields)
        self.tally.found = merged(self.tally.found, parsed.found)
        place = np.flatnonzero(living)
        stays = np.ones(len(place), bool)
        stays[list(parsed.deleted)] = False
        self.tally.inactive += len(parsed.deleted)
        self._digest(records.take(pa.array(place[stays])))
        self._note_errors(records, parsed, place)
        if self._shape.export is Export.CHANGES:
            return self._changes(records, parsed, place, stays)
        kept = pa.array(np.flatnonzero(stays))
        columns = [column.take(kept) for column in parsed.columns.values()]
        errors = _errors(parsed, len(place)).take(kept)
        return self._batch(columns, [], records.take(pa.array(place[stays])), errors)

    def _changes(self, records: pa.RecordBatch, parsed: Parsed, place: np.ndarray, stays: np.ndarray) -> pa.RecordBatch:
        """All records: of those that remove their key nothing but the key and where it was removed."""
        from_row = np.full(records.num_rows, -1)
        from_row[place[stays]] = np.flatnonzero(stays)
        taken = pa.array(from_row, mask=from_row < 0)
        columns = [column.take(taken) for column in parsed.columns.values()]
        operations = pa.array(np.where(from_row < 0, _DELETE, _PUT), pa.string())
        errors = _errors(parsed, len(place)).take(taken)
        values = pa.array(records.column("value").to_pylist(), pa.binary(), mask=from_row < 0)
        removed = records.set_column(1, "value", values)
        return self._batch(columns, [operations], removed, errors)

    def _batch(
        self, columns: Sequence[pa.Array], first: Sequence[pa.Array], records: pa.RecordBatch, errors: pa.Array
    ) -> pa.RecordBatch:
        self.tally.rows += records.num_rows
        keys, *rest = records.columns
        own = [keys.cast(pa.string()), *rest, errors]
        return pa.RecordBatch.from_arrays([*columns, *first, *own], schema=self._shape.schema)

    def _strays(self, records: pa.RecordBatch) -> tuple[int, ...]:
        return strays(records.column("key"), records.column("partition")[0].as_py(), self._shape.partitions)

    def _with_text_keys(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Leave records out whose key is not UTF-8: stores can't look them up either."""
        keys = records.column("key").to_pylist()
        if _is_text(b"\0".join(keys)):
            return records
        text = np.array([_is_text(key) for key in keys])
        self.tally.nameless += int((~text).sum())
        self._note(records.filter(pa.array(~text)), ["the key is not UTF-8"] * int((~text).sum()))
        return records.filter(pa.array(text))

    def _digest(self, records: pa.RecordBatch) -> None:
        self.tally.sums += digest_sums(records.column("key").to_pylist(), records.column("value").to_pylist())

    def _note_errors(self, records: pa.RecordBatch, parsed: Parsed, place: np.ndarray) -> None:
        if parsed.errors:
            bad = records.take(pa.array(place[list(parsed.errors)]))
            self._note(bad, list(parsed.errors.values()))

    def _note(self, bad: pa.RecordBatch, errors: Sequence[str]) -> None:
        places = zip(bad.column("partition").to_pylist(), bad.column("offset").to_pylist(), errors, strict=True)
        self.tally.places = sorted([*self.tally.places, *(BadPlace(*each) for each in places)])[:MOST_PLACES]


def _errors(parsed: Parsed, count: int) -> pa.Array:
    if not parsed.errors:
        return pa.nulls(count, pa.string())
    return pa.array([parsed.errors.get(row) for row in range(count)], pa.string())


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
