"""Files of lines, CSV and JSON → parts. Files with other headers are other parts.

Spark itself takes the first header for all files of a read, and shifts the columns of those that have another.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from compactory.errors import ConfigError

from ..identifier import quoted
from ..rules.mapping import Layout
from ..rules.parts import BLOCK, FAULT, FILE, LINE, PLACE, RAW, Blocks, Part, position
from ..rules.rules import ReadOptions
from .csv_records import Dialect, header, header_names
from .joined_lines import JoinLines
from .line_blocks import count_blocks, places
from .open_quotes import any_open, is_open, unquoted
from .source_files import SourceFile, beginning, shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["read_csv", "read_json"]

_HEADER_BYTES: Final = 1 << 16
_NULL: Final = "\x00null\x00"
"""What from_csv is told that null is, so that an empty field in quotes is an empty text."""
_BAD: Final = "_bad"
_ESCAPE: Final = r"\\."
_STRING: Final = r'"[^"]*"'
_NEXT: Final = r"\}\s*\{"
"""Where an object ends and another begins, outside of strings."""
_UNEVEN: Final = r"\A\s*(\z|\[\s*[\]{n])"
"""A line of which Spark makes no record, or as many as an array has objects, before they can be counted."""
_SMALL: Final = 1 << 30
"""Bytes of files that are looked through in this process: three seconds' work."""
_SPLITS: Final = {"spark.sql.files.openCostInBytes": 4 << 20, "spark.sql.files.maxPartitionBytes": 128 << 20}
"""What decides where Spark divides files, and its defaults."""


def read_csv(spark: SparkSession, files: Sequence[SourceFile], options: ReadOptions) -> list[Part]:
    """A part for each header. Where nobody says whether quotes hold line ends, the files are looked through once.

    Raises ConfigError for headers that can't be read, Unreachable where a file system does not answer.
    """
    from pyspark.sql import functions as sf

    groups: dict[bytes, list[SourceFile]] = {}
    problems: list[str] = []
    for file in files:
        found = b"" if options.header else _header(spark, file, options)
        if found is None:
            problems.append(f"{shown(file.path)}: is empty, without even a header line")
        else:
            groups.setdefault(found, []).append(file)
    layouts: dict[bytes, Layout] = {}
    for text, group in groups.items():
        label = shown(group[0].path)
        try:
            layouts[text] = Layout(label=label, columns=options.header or header_names(text, options, label))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    lines = [_lines(spark, groups[text]) for text in layouts]
    opened = sf.count_if(is_open(sf.col("value").cast("string"), Dialect.of(options))).alias("open")
    blocks: list[Blocks | None] = [cache(partial(count_blocks, each, opened)) for each in lines]
    if options.multiline or (options.multiline is None and _any_open(files, blocks, options)):
        _read_whole(spark, files)
        lines = [
            _joined(each, Dialect.of(options), len(layout.columns))
            for each, layout in zip(lines, layouts.values(), strict=True)
        ]
        blocks = [None for _ in lines]
    return [_csv_part(*each, options) for each in zip(lines, blocks, layouts, layouts.values(), strict=True)]


def _any_open(files: Sequence[SourceFile], blocks: Sequence[Blocks | None], options: ReadOptions) -> bool:
    """Whether quotes may hold line ends. Small files of this machine are looked through here: Spark takes longer."""
    here = [path for file in files if (path := file.here) is not None]
    if len(here) == len(files) and sum(file.size for file in files) <= _SMALL:
        with suppress(OSError):
            return any_open(here, Dialect.of(options))
    return any(block["open"] for count in blocks if count is not None for block in count())


def read_json(spark: SparkSession, files: Sequence[SourceFile], fields: Sequence[str]) -> Part:
    """An object a line; ``fields`` are those of interest. Numbers keep the spelling that they have.

    That is why Spark's reader of files is used: its ``from_json`` makes binary fractions of them (Spark 4.2).
    """
    from pyspark.sql import functions as sf

    uneven = sf.count_if(sf.col("value").cast("string").rlike(_UNEVEN)).alias("uneven")
    blocks = count_blocks(_lines(spark, files), _several().alias("several"), uneven)
    _refuse_several(blocks)
    reader = spark.read.option("columnNameOfCorruptRecord", _BAD).option("__globPaths__", "false")
    frame = reader.schema(_schema([quoted(name) for name in fields])).json([file.path for file in files])
    columns = [sf.col(quoted(name)).alias(position(number)) for number, name in enumerate(fields)]
    located = frame.select(*columns, _BAD, *places())
    countable = not any(block["uneven"] for block in blocks)
    none = sf.lit(None).cast("bigint")
    place = PLACE if countable else [sf.col(FILE), none.alias(BLOCK), none.alias(LINE)]
    fault = sf.when(sf.col(_BAD).isNotNull(), "json")
    kept = [position(number) for number in range(len(fields))]
    objects = sf.to_json(sf.struct(*[sf.col(column).alias(name) for column, name in zip(kept, fields, strict=True)]))
    raw = sf.coalesce(_BAD, objects).alias(RAW)
    label = shown(files[0].path) if len(files) == 1 else f"none of {len(files)} files"
    layout = Layout(label=label, columns=tuple(fields), declared=False)
    records = located.select(*kept, *place, raw, fault.alias(FAULT))
    return Part(layout=layout, frame=records, blocks=(lambda: blocks) if countable else None)


def _several() -> Column:
    """How many lines have several objects."""
    from pyspark.sql import functions as sf

    text = sf.col("value").cast("string")
    bare = sf.regexp_replace(sf.regexp_replace(text, _ESCAPE, ""), _STRING, '""')
    return sf.count_if(text.rlike(_NEXT) & bare.rlike(_NEXT))


def _refuse_several(blocks: Sequence[Any]) -> None:
    """Spark reads the first object of a line and drops the others without a word (Spark 4.2)."""
    problems = {
        f"{shown(block[FILE])}: has lines with several objects, which have to be on one line each; was it put together"
        " from files that did not end with a line end?"
        for block in blocks
        if block["several"]
    }
    if problems:
        raise ConfigError(sorted(problems))


def _header(spark: SparkSession, file: SourceFile, options: ReadOptions) -> bytes | None:
    found = header(beginning(spark, file.path, _HEADER_BYTES), options)
    return found.text if found else None


def _csv_part(lines: DataFrame, blocks: Blocks | None, head: bytes, layout: Layout, options: ReadOptions) -> Part:
    from pyspark.sql import functions as sf

    records = _texts(lines, options)
    if head:
        records = records.where(sf.col(RAW) != head.decode(options.encoding))
    count = len(layout.columns)
    schema = _schema([position(number) for number in range(count)])
    parsed = sf.from_csv(sf.col(RAW), schema, _csv_options(options))
    fault = sf.when(parsed[_BAD].isNotNull(), sf.concat(sf.lit("columns"), _counted(options, count)))
    frame = records.select(
        *[parsed[position(number)].alias(position(number)) for number in range(count)],
        *[*PLACE, RAW],
        sf.coalesce(FAULT, fault).alias(FAULT),
    )
    return Part(layout=layout, frame=frame, blocks=blocks)


def _counted(options: ReadOptions, wanted: int) -> Column:
    """How many columns a record has, where that is certain, for :data:`FAULT`; else an empty text."""
    from pyspark.sql import functions as sf

    bare = unquoted(sf.col(RAW), Dialect.of(options))
    found = sf.regexp_count(bare, sf.lit(re.escape(options.delimiter))) + 1
    certain = ~sf.contains(bare, sf.lit(options.quote)) & (found != wanted)
    unit = sf.when(found == 1, " column").otherwise(" columns")
    text = sf.concat(sf.lit(":has "), found.cast("string"), unit, sf.lit(f"; the header has {wanted}"))
    return sf.when(certain, text).otherwise("")


def _csv_options(options: ReadOptions) -> dict[str, str]:
    return {
        "sep": options.delimiter,
        "quote": options.quote,
        "escape": options.escape or options.quote,
        "nullValue": _NULL,
        "emptyValue": "",
        "columnNameOfCorruptRecord": _BAD,
        "mode": "PERMISSIVE",
    }


def _schema(columns: Sequence[str]) -> str:
    return ", ".join(f"{name} STRING" for name in [*columns, _BAD])


def _lines(spark: SparkSession, files: Sequence[SourceFile]) -> DataFrame:
    """Lines as they are, with a carriage return where there is one."""
    from pyspark.sql import functions as sf

    reader = spark.read.option("lineSep", "\n").option("__globPaths__", "false")
    lines = reader.text([file.path for file in files])
    none = sf.lit(None).cast("string").alias(FAULT)
    return lines.select(sf.col("value").cast("binary").alias("value"), *places(), none)


def _read_whole(spark: SparkSession, files: Sequence[SourceFile]) -> None:
    """Have no file read in blocks from now on: a record may begin in one and end in another."""
    most = max(file.size for file in files) + 1
    for name, least in _SPLITS.items():
        spark.conf.set(name, str(max(most, least)))


def _joined(lines: DataFrame, dialect: Dialect, fields: int) -> DataFrame:
    from pyspark.sql import functions as sf

    schema = f"value BINARY, {FILE} STRING, {LINE} BIGINT, {FAULT} STRING"
    joined = lines.select("value", FILE).mapInArrow(JoinLines(dialect, [FILE, LINE, FAULT], fields), schema)
    return joined.withColumn(BLOCK, sf.lit(None).cast("bigint"))


def _texts(lines: DataFrame, options: ReadOptions) -> DataFrame:
    """Records as text, without blank ones and the carriage return of a line's end; what is no text has a fault."""
    from pyspark.sql import functions as sf

    value = sf.col("value").cast("string")
    valid = sf.is_valid_utf8(value) if _is_utf8(options) else sf.lit(True)
    text = sf.make_valid_utf8(value) if _is_utf8(options) else sf.decode("value", options.encoding)
    stripped = sf.rtrim(text, sf.lit("\r"))
    fault = sf.when(~valid, "encoding")
    blank = sf.trim(stripped) == ""
    return lines.select(stripped.alias(RAW), *PLACE, sf.coalesce(FAULT, fault).alias(FAULT)).where(~blank)


def _is_utf8(options: ReadOptions) -> bool:
    return codecs.lookup(options.encoding).name in {"utf-8", "ascii", "utf-8-sig"}
