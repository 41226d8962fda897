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
_ESCAPE: Final = r"\\."
_STRING: Final = r'"[^"]*"'
_NEXT: Final = r"\}\s*\{"
"""Where an object ends and another begins, outside of strings."""
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
    numbered = _records(spark, [groups[text] for text in layouts], options)
    return [_csv_part(frame, *item, options) for frame, item in zip(numbered, layouts.items(), strict=True)]


def _records(spark: SparkSession, groups: Sequence[Sequence[SourceFile]], options: ReadOptions) -> list[DataFrame]:
    """The records of each group of files with their lines: all of them joined where one group has to be, for how Spark
    divides files is one setting for whatever is read later.
    """
    from pyspark.sql import functions as sf

    dialect = Dialect.of(options)
    lines = [_lines(spark, files) for files in groups]
    blocks = [[] if options.multiline else _blocks(each, dialect) for each in lines]
    inside = any(block["open"] for each in blocks for block in each)
    if options.multiline or (options.multiline is None and inside):
        _read_whole(spark, [file for files in groups for file in files])
        return [_joined(each, dialect) for each in lines]
    none = sf.lit(None).cast("string").alias(FAULT)
    return [_numbered(spark, each, its).select("*", none) for each, its in zip(lines, blocks, strict=True)]


def read_json(spark: SparkSession, files: Sequence[SourceFile], fields: Sequence[str]) -> Part:
    """An object a line; ``fields`` are those of interest. Numbers keep the spelling that they have.

    That is why Spark's reader of files is used: its ``from_json`` makes binary fractions of them (Spark 4.2).
    """
    from pyspark.sql import functions as sf

    blocks = _blocks(_lines(spark, files))
    _refuse_several(blocks)
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


def _csv_part(numbered: DataFrame, head: bytes, layout: Layout, options: ReadOptions) -> Part:
    from pyspark.sql import functions as sf

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


def _blocks(lines: DataFrame, dialect: Dialect | None = None) -> list[Any]:
    """How many lines each block has. Of CSV, in how many quotes are open at the end, or so it looks; of JSON, how many
    have several objects.
    """
    from pyspark.sql import functions as sf

    text = sf.col("value").cast("string")
    if dialect is not None:
        special = sf.count_if(_open_at_end(text, dialect)).alias("open")
    else:
        bare = sf.regexp_replace(sf.regexp_replace(text, _ESCAPE, ""), _STRING, '""')
        special = sf.count_if(text.rlike(_NEXT) & bare.rlike(_NEXT)).alias("several")
    counted = lines.groupBy(FILE, "block").agg(
        sf.min("at").alias("first"),
        sf.count("*").alias("lines"),
        special,
        sf.count_if(sf.trim(text).isin("", "\r")).alias("blank"),
    )
    return sorted(counted.collect(), key=lambda block: (block[FILE], block["block"]))


def _open_at_end(text: Column, dialect: Dialect) -> Column:
    """Whether a line has open quotes at its end, or may have."""
    from pyspark.sql import functions as sf

    quote = dialect.quote.decode()
    has_quote = sf.contains(text, sf.lit(quote))
    if not dialect.doubles:
        return has_quote
    single = sf.replace(text, sf.lit(quote * 2), sf.lit(""))
    return has_quote & sf.regexp_replace(single, dialect.quoted, "$1").rlike(dialect.opening)


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
