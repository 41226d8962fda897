"""What a source is read into: records that have the same columns, in frames that all look alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame

from .mapping import Layout

__all__ = ["BLOCK", "FAULT", "FAULTS", "FILE", "LINE", "PLACE", "RAW", "Blocks", "Part", "position"]

FILE: Final = "_file"
"""Column of every part: the file that the record is in; null for a table."""
BLOCK: Final = "_block"
"""Where the block of the file begins from which :data:`LINE` counts; null: it counts from the file's beginning."""
LINE: Final = "_line"
"""The line on which it begins, of Parquet the row, from 1; null where nobody can tell. Within a block it counts from
anywhere.
"""
PLACE: Final = (FILE, BLOCK, LINE)
RAW: Final = "_raw"
"""The record as it is in the file; null where it is not text."""
FAULT: Final = "_fault"
"""What is wrong with the whole record: a key of :data:`FAULTS`, then a colon and the facts where they are known; null
where it can be told apart into columns.
"""
FAULTS: Final = {
    "columns": "has another number of columns than the header",
    "quote": "opens a quote that is never closed, or closed on a later line where the columns no longer fit",
    "encoding": "is not text in the encoding of the file; say read.encoding in the rules",
    "json": "is not a JSON object on one line",
}


Blocks: TypeAlias = Callable[[], Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Records with the same columns. ``frame`` has them as :func:`position` names them, and those above.

    ``blocks`` counts the lines of each block of its files; None: it has no blocks.
    """

    layout: Layout
    frame: DataFrame
    blocks: Blocks | None = None


def position(number: int) -> str:
    """The name that a part's frame has for a column of the source: sources may have any, also twice."""
    return f"_at{number}"
