"""Rows of a load → records, in the executors: what a connector's source would send, or what a DirectoryWriter would.

A maker is small and travels to the tasks; each compiles it once, for the columns that its rows have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from ..record_batch import Batches, in_arrow, of_rows

__all__ = ["Headers", "Made", "Maker", "make_records"]

Headers: TypeAlias = list[tuple[str, bytes | None]]

_MADE: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("problem", pa.string()),
    ]
)


class Made(NamedTuple):
    """A record, or why there is none: the problem names the column and never shows a value."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers | None = None
    problem: str | None = None


class Maker(Protocol):
    """How rows of one directory become records. Immutable, and can be pickled."""

    @property
    def needs(self) -> Sequence[str]:
        """The columns without which no record can be made."""
        ...

    @property
    def tells_keys(self) -> bool:
        """Whether the columns of the key alone say what the record's key is."""
        ...

    def written(self, name: str) -> str:
        """A column as tasks are given it, in Spark's SQL."""
        ...

    def compiled(self, names: Sequence[str]) -> Callable[[pa.RecordBatch], Iterator[Made | None]]:
        """The function of batches with these columns; None for a row of which there is no record.

        Of the columns of the key alone it makes the record's key alone.
        """
        ...


def make_records(maker: Maker, rows: DataFrame) -> DataFrame:
    """Rows with the columns that the maker needs, or with those of the key → ``key, value, headers, problem``.

    A null value is a tombstone; with a problem the key is null.
    """
    names = rows.columns

    def run(batches: Batches) -> Batches:
        make = maker.compiled(names)
        for batch in batches:
            yield of_rows([made for made in make(batch) if made is not None], _MADE)

    return in_arrow(rows.selectExpr(*map(maker.written, names)), run, _MADE)
