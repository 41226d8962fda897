"""Files of lines, CSV and JSON → parts. Files with other headers are other parts.

Spark itself takes the first header for all files of a read, and shifts the columns of those that have another.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from compactory.errors import ConfigError

from .csv_records import Dialect, header, header_names
from .joined_lines import JoinLines
from .mapping import Layout
from .parts import FAULT, FILE, LINE, RAW, Part, position
from .rules import ReadOptions
from .source_files import SourceFile, beginning, shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["read_csv", "read_json"]

_HEADER_BYTES: Final = 1 << 16
_NULL: Final = "\x00null\x00"
"""What from_csv is told that null is, so that an empty field in quotes is an empty text."""
_BAD: Final = "_bad"
_SPLITS: Final = {"spark.sql.files.openCostInBytes": 4 << 20, "spark.sql.files.maxPartitionBytes": 128 << 20}
"""What decides where Spark divides files, and its defaults."""


def read_csv(spark: SparkSession, files: Sequence[SourceFile], options: ReadOptions) -> list[Part]:
    """A part for each header. Where nobody says whether quotes hold line ends, the files are looked through once.

    Raises ConfigError for headers that can't be read, Unreachable where a file system does not answer.
    """
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
    return [_csv_part(spark, groups[text], text, layout, options) for text, layout in layouts.items()]


def read_json(spark: SparkSession, files: Sequence[SourceFile], fields: Sequence[str]) -> Part:
    """An object a line; ``fields`` are those of interest. Numbers keep the spelling that they have.

    That is why Spark's reader of files is used: its ``from_json`` makes binary fractions of them (Spark 4.2).
    """
    from pyspark.sql import functions as sf

    blocks = _blocks(_lines(spark, files), b'"')
    reader = spark.read.option("columnNameOfCorruptRecord", _BAD).option("__globPaths__", "false")
    frame = reader.schema(_schema([_quoted(name) for name in fields])).json([file.path for file in files])
    columns = [sf.col(_quoted(name)).alias(position(number)) for number, name in enumerate(fields)]
    located = frame.select(*columns, _BAD, *_places())
    blank = any(block["blank"] for block in blocks)  # Spark leaves blank lines out before they can be counted
    line = sf.lit(None).cast("bigint") if blank else sf.col(LINE)
    numbered = _numbered(spark, located, blocks)
    fault = sf.when(sf.col(_BAD).isNotNull(), "json")
    kept = [position(number) for number in range(len(fields))]
    objects = sf.to_json(sf.struct(*[sf.col(column).alias(name) for column, name in zip(kept, fields, strict=True)]))
    raw = sf.coalesce(_BAD, objects).alias(RAW)
    label = shown(files[0].path) if len(files) == 1 else f"none of {len(files)} files"
    layout = Layout(label=label, columns=tuple(fields), declared=False)
    return Part(layout=layout, frame=numbered.select(*kept, FILE, line.alias(LINE), raw, fault.alias(FAULT)))


def _header(spark: SparkSession, file: SourceFile, options: ReadOptions) -> bytes | None:
    found = header(beginning(spark, file.path, _HEADER_BYTES), options)
    return found.text if found else None


def _csv_part(
    spark: SparkSession, files: Sequence[SourceFile], head: bytes, layout: Layout, options: ReadOptions
) -> Part:
    from pyspark.sql import functions as sf

    dialect = Dialect.of(options)
    lines = _lines(spark, files)
    blocks = [] if options.multiline else _blocks(lines, dialect.quote)
    if options.multiline or (options.multiline is None and any(block["odd"] for block in blocks)):
        _read_whole(spark, files)
        numbered = _joined(_lines(spark, files), dialect)
    else:
        numbered = _numbered(spark, lines, blocks).withColumn(FAULT, sf.lit(None).cast("string"))
    records = _texts(numbered, options)
    if head:
        records = records.where(sf.col(RAW) != head.decode(options.encoding))
    count = len(layout.columns)
    schema = _schema([position(number) for number in range(count)])
    parsed = sf.from_csv(sf.col(RAW), schema, _csv_options(options))
    fault = sf.when(parsed[_BAD].isNotNull(), "columns")
    frame = records.select(
        *[parsed[position(number)].alias(position(number)) for number in range(count)],
        *[FILE, LINE, RAW],
        sf.coalesce(FAULT, fault).alias(FAULT),
    )
    return Part(layout=layout, frame=frame)


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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _lines(spark: SparkSession, files: Sequence[SourceFile]) -> DataFrame:
    """Lines as they are, with a carriage return where there is one; ``at`` grows along a block of a file."""
    from pyspark.sql import functions as sf

    reader = spark.read.option("lineSep", "\n").option("__globPaths__", "false")
    lines = reader.text([file.path for file in files])
    return lines.select(sf.col("value").cast("binary").alias("value"), *_places())


def _places() -> list[Column]:
    """Where a record is: ``at`` grows along a block of a file."""
    from pyspark.sql import functions as sf

    return [
        sf.col("_metadata.file_path").alias(FILE),
        sf.col("_metadata.file_block_start").alias("block"),
        sf.monotonically_increasing_id().alias("at"),
    ]


def _blocks(lines: DataFrame, quote: bytes) -> list[Any]:
    """How many lines each block has, and in how many of them quotes are open at the end, or so it looks."""
    from pyspark.sql import functions as sf

    text = sf.col("value").cast("string")
    without = sf.replace(text, sf.lit(quote.decode()), sf.lit(""))
    odd = (sf.octet_length(text) - sf.octet_length(without)).bitwiseAND(1)
    counted = lines.groupBy(FILE, "block").agg(
        sf.min("at").alias("first"),
        sf.count("*").alias("lines"),
        sf.sum(odd).alias("odd"),
        sf.count_if(sf.trim(text).isin("", "\r")).alias("blank"),
    )
    return sorted(counted.collect(), key=lambda block: (block[FILE], block["block"]))


def _numbered(spark: SparkSession, lines: DataFrame, blocks: Sequence[Any]) -> DataFrame:
    """Lines with their numbers in the file."""
    from pyspark.sql import functions as sf

    rows, before, file = [], 0, None
    for block in blocks:
        before = before if block[FILE] == file else 0
        file = block[FILE]
        rows.append((file, block["block"], 1 + before - block["first"]))
        before += block["lines"]
    starts = spark.createDataFrame(rows, f"{FILE} STRING, block BIGINT, shift BIGINT")
    joined = lines.join(sf.broadcast(starts), [FILE, "block"])
    return joined.withColumn(LINE, sf.col("at") + sf.col("shift")).drop("block", "at", "shift")


def _read_whole(spark: SparkSession, files: Sequence[SourceFile]) -> None:
    """Have no file read in blocks from now on: a record may begin in one and end in another."""
    most = max(file.size for file in files) + 1
    for name, least in _SPLITS.items():
        spark.conf.set(name, str(max(most, least)))


def _joined(lines: DataFrame, dialect: Dialect) -> DataFrame:
    schema = f"value BINARY, {FILE} STRING, {LINE} BIGINT, {FAULT} STRING"
    return lines.select("value", FILE).mapInArrow(JoinLines(dialect, [FILE, LINE, FAULT]), schema)


def _texts(numbered: DataFrame, options: ReadOptions) -> DataFrame:
    """Records as text, without blank ones and the carriage return of a line's end; what is no text has a fault."""
    from pyspark.sql import functions as sf

    value = sf.col("value").cast("string")
    valid = sf.is_valid_utf8(value) if _is_utf8(options) else sf.lit(True)
    text = sf.make_valid_utf8(value) if _is_utf8(options) else sf.decode("value", options.encoding)
    stripped = sf.rtrim(text, sf.lit("\r"))
    fault = sf.when(~valid, "encoding")
    blank = sf.trim(stripped) == ""
    return numbered.select(stripped.alias(RAW), FILE, LINE, sf.coalesce(FAULT, fault).alias(FAULT)).where(~blank)


def _is_utf8(options: ReadOptions) -> bool:
    return codecs.lookup(options.encoding).name in {"utf-8", "ascii", "utf-8-sig"}
