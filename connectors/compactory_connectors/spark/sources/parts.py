"""The parts of a source: records that have the same columns, in frames that all look alike.

Spark reads files in blocks, and counts no lines: they are counted when somebody asks on which a record is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ..rules.mapping import Layout

__all__ = [
    "BLOCK",
    "FAULT",
    "FAULTS",
    "FILE",
    "LINE",
    "PLACE",
    "PLACES",
    "RAW",
    "Blocks",
    "Part",
    "count_blocks",
    "numbered",
    "position",
    "read_lines",
]

FILE: Final = "_file"
"""Column of every part: the file that the record is in; null for a table."""
BLOCK: Final = "_block"
"""Where the block of the file begins from which :data:`LINE` counts; null: it counts from the file's beginning."""
LINE: Final = "_line"
"""The line on which it begins, of Parquet the row, from 1; null where nobody can tell. Within a block it counts from
anywhere.
"""
PLACE: Final = (FILE, BLOCK, LINE)
PLACES: Final = (
    f"_metadata.file_path AS {FILE}",
    f"_metadata.file_block_start AS {BLOCK}",
    f"monotonically_increasing_id() AS {LINE}",
)
"""Where a record is: the line grows along a block of a file, until :func:`numbered` knows from where."""
RAW: Final = "_raw"
"""The record as it is in the file; null where it is not text."""
FAULT: Final = "_fault"
"""The fault of the whole record: a key of :data:`FAULTS`, then a colon and the facts where they are known; null where
the record can be told apart into columns.
"""
FAULTS: Final = {
    "columns": "has another number of columns than the header",
    "quote": (
        "opens a quote that its line does not close; where quoted text has line ends, set read.multiline: true in the"
        " rules"
    ),
    "encoding": "is not text in the encoding of the file; set read.encoding in the rules",
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


def read_lines(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Lines as they are, with a carriage return where there is one, in ``value``; its bytes need not be UTF-8."""
    reader = spark.read.option("lineSep", "\n").option("__globPaths__", "false")
    return reader.text([*files])


def count_blocks(lines: DataFrame, *also: str) -> list[Any]:
    """The blocks of files, in order: how many lines each has, and what else is asked of them, in SQL."""
    counts = [f"min({LINE}) AS first", "count(*) AS lines", *also]
    counted = lines.groupBy(FILE, BLOCK).agg(*map(sf.expr, counts))
    return sorted(counted.collect(), key=lambda block: (block[FILE], block[BLOCK]))


def numbered(frame: DataFrame, parts: Sequence[Part]) -> DataFrame:
    """Records of these parts with their lines in the file, from 1; blocks are counted now where they were not yet."""
    rows, previous, file = [], 0, None
    for block in [block for part in parts if part.blocks is not None for block in part.blocks()]:
        previous = previous if block[FILE] == file else 0
        file = block[FILE]
        rows.append((file, block[BLOCK], 1 + previous - block["first"]))
        previous += block["lines"]
    if not rows:
        return frame
    starts = frame.sparkSession.createDataFrame(rows, f"{FILE} STRING, {BLOCK} BIGINT, shift BIGINT")
    joined = frame.join(sf.broadcast(starts), [FILE, BLOCK], "left")
    line = sf.expr(f"{LINE} + coalesce(shift, 0)")
    return joined.withColumns({LINE: line, BLOCK: sf.expr("bigint(NULL)")}).drop("shift")
