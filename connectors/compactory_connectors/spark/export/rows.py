"""A task of an export makes rows of files from records, as typed rows are made, and counts them.

Runs in the executors. Its counts go to an accumulator, which takes each task of the job that writes the files once,
however often it was tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final, Self

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from compactory.directory import Envelope

from ..digests import Sums, no_sums, sums_of
from ..record_batch import Batches, Task
from ..topic.partition_homes import strays
from ..typed.fields import arrow_schema, columns_of, in_json
from ..typed.json_columns import Fields
from ..typed.json_types import merged, settled, spelt
from ..typed.typed_rows import ERROR, OPERATION, VALIDITY, RowShape, TypedRows
from .manifest import Export, Manifest, Place

__all__ = ["Shape", "Tally", "rows", "tally_of"]

_MOST_PLACES: Final = 100  # bad records that are named; further ones are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of rows: columns of the values' fields, then those of the record, whose names begin with ``_``.

    Of :data:`Export.CHANGES` removed keys are rows too (``_op`` is ``delete``); of :data:`Export.HISTORY` records have
    ``_valid_from`` and ``_valid_to`` as well. ``fields`` are in JSON's types.
    """

    fields: Fields = field(default_factory=dict)
    given: StructType | None = None
    """The columns where they were given, not found: a value that does not fit one is an error of its row."""
    envelope: Envelope = "none"
    active: str | None = None
    export: Export = Export.FULL
    partitions: int = 1

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The shape of the rows of an export."""
        columns = columns_of(manifest.columns)
        return cls(
            fields=in_json(columns.fields),
            given=columns if manifest.fixed else None,
            envelope=manifest.envelope,
            active=manifest.active,
            export=manifest.export,
        )

    @property
    def columns(self) -> dict[str, str]:
        """The columns of fields, in Spark's words."""
        found = {name: from_arrow_type(settled(kind)) for name, kind in self.fields.items()}
        types = found if self.given is None else {column.name: column.dataType for column in self.given.fields}
        return {name: spelt(kind) for name, kind in types.items()}

    @property
    def schema(self) -> pa.Schema:
        """All columns, as Arrow has them."""
        found = [(name, settled(kind)) for name, kind in self.fields.items()]
        first = [(OPERATION, pa.string())] if self.export is Export.CHANGES else []
        moment = pa.timestamp("us", "UTC")
        between = [(name, moment) for name in VALIDITY] if self.export is Export.HISTORY else []
        own = [
            ("_key", pa.string()),
            ("_value", pa.binary()),
            ("_partition", pa.int32()),
            ("_offset", pa.int64()),
            ("_timestamp_ms", pa.int64()),
            *between,
            (ERROR, pa.string()),
        ]
        return pa.schema([*(found if self.given is None else arrow_schema(self.given)), *first, *own])


@dataclass(slots=True, kw_only=True)
class Tally:
    """The counts of tasks. They add up in any order."""

    counts: Counter[str] = field(default_factory=Counter)
    """By the names of :class:`Counts`."""
    strays: tuple[int, ...] = (0, 0)
    """Keys that are not where a partitioner puts them, by `partition_homes`: others of theirs may be elsewhere."""
    spills: int = 0
    """How often a task handed keys on that may have come again."""
    places: list[Place] = field(default_factory=list)
    found: Fields = field(default_factory=dict)
    sums: Sums = field(default_factory=no_sums)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            counts=self.counts + other.counts,
            strays=tuple(map(sum, zip(self.strays, other.strays, strict=True))),
            spills=self.spills + other.spills,
            places=sorted([*self.places, *other.places])[:_MOST_PLACES],
            found=merged(self.found, other.found),
            sums=self.sums + other.sums,
        )


class _Adding(AccumulatorParam[Tally]):
    """Adds tallies for Spark."""

    def zero(self, value: Tally) -> Tally:
        del value
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:  # noqa: N802 (Spark's name)
        return value1 + value2


def tally_of(spark: SparkSession) -> Accumulator[Tally]:
    """A new tally: tasks call ``add``, the driver asks for ``value``."""
    return spark.sparkContext.accumulator(Tally(), _Adding())


def rows(shape: Shape, count: Callable[[Tally], None]) -> Task:
    """The function of a task: takes records, one a key, and gives rows; calls ``count`` at its end."""
    typed = RowShape(
        schema=shape.schema,
        fields=shape.fields,
        fixed=shape.given is not None,
        envelope=shape.envelope,
        active=shape.active,
        changes=shape.export is Export.CHANGES,
    )

    def make(batches: Batches) -> Batches:
        tally, maker = Tally(), TypedRows(typed)
        for batch in batches:
            if not batch.num_rows:
                continue
            made, seen = _rows(maker, batch)
            moved = strays(batch.column("key"), batch.column("partition")[0].as_py(), shape.partitions)
            tally += replace(seen, strays=moved)
            if made.num_rows:
                yield _without_values(made) if typed.changes else made
        count(tally)

    return make


def _rows(maker: TypedRows, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Tally]:
    """The rows of these records, and what is to be counted of them."""
    records, nameless = _by_name(records)
    typed = maker.of(records)
    living = typed.records if typed.lives.all() else typed.records.filter(pa.array(typed.lives))
    tombstones = records.column("value").null_count
    counts = Counter(
        rows=typed.rows.num_rows,
        deletes=typed.rows.num_rows - living.num_rows,
        bad=len(typed.errors),
        tombstones=tombstones,
        inactive=records.num_rows - tombstones - living.num_rows,
        nameless=nameless.num_rows,
    )
    bad = typed.records.take(pa.array(list(typed.errors), pa.int64()))
    places = _places(bad, typed.errors.values()) + _places(nameless, repeat("the key is not UTF-8"))
    sums = sums_of(living.column("key").to_pylist(), living.column("value").to_pylist())
    return typed.rows, Tally(counts=counts, places=places, found=typed.found, sums=sums)


def _by_name(records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The records, and those whose key is not UTF-8: stores can't look these up either."""
    keys = records.column("key").to_pylist()
    if _is_text(b"\0".join(keys)):
        return records, records.slice(0, 0)
    text = np.array([_is_text(key) for key in keys])
    return records.filter(pa.array(text)), records.filter(pa.array(~text))


def _places(bad: pa.RecordBatch, errors: Iterable[str]) -> list[Place]:
    return list(map(Place, bad.column("partition").to_pylist(), bad.column("offset").to_pylist(), errors))


def _without_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Of those that remove their key nothing but the key and where it was removed."""
    place = rows.schema.get_field_index("_value")
    removed = np.array(rows.column(OPERATION).to_pylist()) == "delete"
    values = pa.array(rows.column(place).to_pylist(), pa.binary(), mask=removed)
    return rows.set_column(place, rows.schema.field(place), values)


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
