"""Lines of files, and the numbers of those that records are on. Spark reads files in blocks, and counts no lines.

They are counted when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ..rules.parts import BLOCK, FILE, LINE, Part
from .source_files import SourceFile

__all__ = ["PLACES", "count_blocks", "numbered", "read_lines"]

PLACES: Final = (
    f"_metadata.file_path AS {FILE}",
    f"_metadata.file_block_start AS {BLOCK}",
    f"monotonically_increasing_id() AS {LINE}",
)
"""Where a record is: the line grows along a block of a file, until :func:`numbered` knows from where."""


def read_lines(spark: SparkSession, files: Sequence[SourceFile]) -> DataFrame:
    """Lines as they are, with a carriage return where there is one, in ``value``; its bytes need not be UTF-8."""
    reader = spark.read.option("lineSep", "\n").option("__globPaths__", "false")
    return reader.text([file.path for file in files])


def count_blocks(lines: DataFrame, *also: str) -> list[Any]:
    """The blocks of files, in order: how many lines each has, and what else is asked of them, in SQL."""
    counts = [f"min({LINE}) AS first", "count(*) AS lines", *also]
    counted = lines.groupBy(FILE, BLOCK).agg(*map(sf.expr, counts))
    return sorted(counted.collect(), key=lambda block: (block[FILE], block[BLOCK]))


def numbered(frame: DataFrame, parts: Sequence[Part]) -> DataFrame:
    """Records of these parts with their lines in the file, from 1; blocks are counted now where they were not yet."""
    rows, before, file = [], 0, None
    for block in [block for part in parts if part.blocks is not None for block in part.blocks()]:
        before = before if block[FILE] == file else 0
        file = block[FILE]
        rows.append((file, block[BLOCK], 1 + before - block["first"]))
        before += block["lines"]
    if not rows:
        return frame
    starts = frame.sparkSession.createDataFrame(rows, f"{FILE} STRING, {BLOCK} BIGINT, shift BIGINT")
    joined = frame.join(sf.broadcast(starts), [FILE, BLOCK], "left")
    line = sf.expr(f"{LINE} + coalesce(shift, 0)")
    return joined.withColumns({LINE: line, BLOCK: sf.expr("bigint(NULL)")}).drop("shift")
