"""The lines that records are on, where Spark reads files in blocks: they are counted when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..rules.parts import BLOCK, FILE, LINE, Part

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["count_blocks", "numbered", "places"]


def places() -> list[Column]:
    """Where a record is: the line grows along a block of a file, until :func:`numbered` knows from where."""
    from pyspark.sql import functions as sf

    return [
        sf.col("_metadata.file_path").alias(FILE),
        sf.col("_metadata.file_block_start").alias(BLOCK),
        sf.monotonically_increasing_id().alias(LINE),
    ]


def count_blocks(lines: DataFrame, *also: Column) -> list[Any]:
    """The blocks of files, in order: how many lines each has, and what else is asked of them."""
    from pyspark.sql import functions as sf

    counts = [sf.min(LINE).alias("first"), sf.count("*").alias("lines")]
    counted = lines.groupBy(FILE, BLOCK).agg(*counts, *also)
    return sorted(counted.collect(), key=lambda block: (block[FILE], block[BLOCK]))


def numbered(frame: DataFrame, parts: Sequence[Part]) -> DataFrame:
    """Records of these parts with their lines in the file, from 1; blocks are counted now where they were not yet."""
    from pyspark.sql import functions as sf

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
    line = sf.col(LINE) + sf.coalesce("shift", sf.lit(0))
    return joined.withColumn(LINE, line).withColumn(BLOCK, sf.lit(None).cast("bigint")).drop("shift")
