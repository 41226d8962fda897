"""JSON files, an object a line → one part.

Spark's reader of files is used: numbers keep the spelling that they have. Its ``from_json`` makes binary fractions of
them (Spark 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from compactory.errors import ConfigError

from ..identifier import quoted
from ..rules.mapping import Layout
from .parts import BLOCK, FAULT, FILE, LINE, PLACE, PLACES, RAW, Part, count_blocks, position, read_lines
from .source_files import display_path

__all__ = ["read_json"]

_BAD: Final = "_bad"
_NEXT: Final = r"r'\}\s*\{'"
"""Where an object ends and another begins, outside of strings."""
_BARE: Final = """regexp_replace(regexp_replace(value, r'\\\\.', ''), r'"[^"]*"', '""')"""
"""A line without what is in its strings."""
_SEVERAL: Final = f"count_if(value RLIKE {_NEXT} AND {_BARE} RLIKE {_NEXT}) AS several"
_UNEVEN: Final = r"count_if(value RLIKE r'\A\s*(\z|\[\s*[\]{n])') AS uneven"
"""Lines of which Spark makes no record, or as many as an array has objects, before they can be counted."""


def read_json(spark: SparkSession, files: Sequence[str]) -> Part:
    """Return the objects of these files, with the fields that any object has. The files' lines are counted now.

    Raises ConfigError for lines with several objects.
    """
    blocks = count_blocks(read_lines(spark, files).selectExpr("value", *PLACES), _SEVERAL, _UNEVEN)
    _refuse_several(blocks)
    countable = not any(block["uneven"] for block in blocks)
    reader = spark.read.option("columnNameOfCorruptRecord", _BAD).option("__globPaths__", "false")
    fields = [name for name in reader.option("primitivesAsString", "true").json([*files]).columns if name != _BAD]
    schema = ", ".join(f"{name} STRING" for name in [*map(quoted, fields), _BAD])
    columns = [f"{quoted(name)} AS {position(number)}" for number, name in enumerate(fields)]
    objects = ", ".join(map(quoted, fields)) or "NULL AS none"
    frame = (
        reader.schema(schema)
        .json([*files])
        .selectExpr(*columns, *PLACES, f"coalesce({_BAD}, to_json(struct({objects}))) AS {RAW}", _BAD)
    )
    positions = [position(number) for number in range(len(fields))]
    place = PLACE if countable else (FILE, f"bigint(NULL) AS {BLOCK}", f"bigint(NULL) AS {LINE}")
    records = frame.selectExpr(*positions, *place, RAW, f"if({_BAD} IS NULL, NULL, 'json') AS {FAULT}")
    label = display_path(files[0]) if len(files) == 1 else f"none of {len(files)} files"
    layout = Layout(label=label, columns=tuple(fields))
    return Part(layout=layout, frame=records, blocks=(lambda: blocks) if countable else None)


def _refuse_several(blocks: Sequence[Any]) -> None:
    """Spark reads the first object of a line and drops the others without a word (Spark 4.2)."""
    problems = {
        f"{display_path(block[FILE])}: has lines with several objects, which have to be on one line each; was it put"
        " together from files that did not end with a line end?"
        for block in blocks
        if block["several"]
    }
    if problems:
        raise ConfigError(sorted(problems))
