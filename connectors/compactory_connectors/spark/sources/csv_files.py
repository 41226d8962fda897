"""CSV files → parts. Files with other headers are other parts.

Spark itself takes the first header for all files of a read, and shifts the columns of those that have another.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import ConfigError

from ..identifier import literal
from ..rules.mapping import Layout
from ..rules.rules import ReadOptions
from .csv_records import Dialect, header, header_names
from .joined_lines import JoinLines, any_open
from .parts import BLOCK, FAULT, FILE, LINE, PLACE, PLACES, RAW, Blocks, Part, count_blocks, position, read_lines
from .source_files import SourceFile, beginning, shown

__all__ = ["read_csv"]

_HEADER_BYTES: Final = 1 << 16
_NULL: Final = "\x00null\x00"
"""The text that stands for null in from_csv, so that an empty field in quotes is an empty text."""
_SMALL: Final = 1 << 30
"""Bytes of files that are looked through in this process: some seconds' work."""
_SPLITS: Final = {"spark.sql.files.openCostInBytes": 4 << 20, "spark.sql.files.maxPartitionBytes": 128 << 20}
"""The properties by which Spark divides files, and their defaults."""


def read_csv(spark: SparkSession, files: Sequence[SourceFile], options: ReadOptions) -> list[Part]:
    """A part for each header. Where nobody says whether quotes hold line ends, the files are looked through once.

    Raises ConfigError for headers that can't be read, Unreachable where a file system does not answer.
    """
    groups: dict[bytes, list[SourceFile]] = {}
    problems: list[str] = []
    for file in files:
        found = None if options.header else header(beginning(spark, file.path, _HEADER_BYTES), options)
        if found is None and not options.header:
            problems.append(f"{shown(file.path)}: is empty, without even a header line")
        groups.setdefault(found.text if found is not None else b"", []).append(file)
    layouts: dict[bytes, Layout] = {}
    for text, group in groups.items():
        label = shown(group[0].path)
        try:
            layouts[text] = Layout(label=label, columns=options.header or header_names(text, options, label))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    dialect = Dialect.of(options)
    lines = [read_lines(spark, groups[text]).selectExpr("value", *PLACES) for text in layouts]
    opened = f"count_if({_is_open('value', dialect)}) AS open"
    blocks: list[Blocks | None] = [cache(partial(count_blocks, each, opened)) for each in lines]
    if options.multiline or (options.multiline is None and _any_open(files, blocks, dialect)):
        _read_whole(spark, files)
        lines = [
            _joined(each, dialect, len(layout.columns)) for each, layout in zip(lines, layouts.values(), strict=True)
        ]
        blocks = [None for _ in lines]
    return [_part(*each, options) for each in zip(lines, blocks, layouts, layouts.values(), strict=True)]


def _any_open(files: Sequence[SourceFile], blocks: Sequence[Blocks | None], dialect: Dialect) -> bool:
    """Whether quotes may hold line ends. Small files of this machine are looked through here: Spark takes longer."""
    here = [path for file in files if (path := file.here) is not None]
    if len(here) == len(files) and sum(file.size for file in files) <= _SMALL:
        with suppress(OSError):
            return any_open(here, dialect)
    return any(block["open"] for count in blocks if count is not None for block in count())


def _part(lines: DataFrame, blocks: Blocks | None, head: bytes, layout: Layout, options: ReadOptions) -> Part:
    """Records told apart into columns; blank ones and headers that are repeated are left out."""
    utf8 = codecs.lookup(options.encoding).name in {"utf-8", "ascii", "utf-8-sig"}
    text = "make_valid_utf8(value)" if utf8 else f"decode(binary(value), {literal(options.encoding)})"
    fault = "if(is_valid_utf8(value), NULL, 'encoding')" if utf8 else "NULL"
    raw = f"if(endswith({text}, '\r'), trim(TRAILING '\r' FROM {text}), {text}) AS {RAW}"  # trim looks at each letter
    known = f"coalesce({FAULT}, {fault})" if FAULT in lines.columns else fault
    blank = f"trim({RAW}) <> ''" + (f" AND {RAW} <> {literal(head.decode(options.encoding))}" if head else "")
    count = len(layout.columns)
    schema = ", ".join(f"{name} STRING" for name in [*map(position, range(count)), "_bad"])
    signs = {
        "sep": options.delimiter,
        "quote": options.quote,
        "escape": options.escape or options.quote,
        "nullValue": _NULL,
        "emptyValue": "",
        "columnNameOfCorruptRecord": "_bad",
        "mode": "PERMISSIVE",
    }
    parsed = f"from_csv({RAW}, '{schema}', map({', '.join(map(literal, sum(signs.items(), ())))})) AS parsed"
    wrong = f"if(parsed._bad IS NULL, NULL, concat('columns', {_counted(options, count)}))"
    frame = (
        lines.selectExpr(raw, *PLACE, f"string({known}) AS {FAULT}")
        .where(blank)
        .selectExpr(parsed, *PLACE, RAW, FAULT)
        .selectExpr("parsed.*", *PLACE, RAW, f"coalesce({FAULT}, {wrong}) AS {FAULT}")
    )
    return Part(layout=layout, frame=frame, blocks=blocks)


def _counted(options: ReadOptions, wanted: int) -> str:
    """How many columns a record has, where that is certain, for :data:`FAULT`; else an empty text."""
    bare = _unquoted(RAW, Dialect.of(options))
    found = f"(regexp_count({bare}, {literal(re.escape(options.delimiter))}) + 1)"
    certain = f"NOT contains({bare}, {literal(options.quote)}) AND {found} <> {wanted}"
    text = f"concat(':has ', {found}, if({found} = 1, ' column', ' columns'), '; the header has {wanted}')"
    return f"if({certain}, {text}, '')"


def _is_open(text: str, dialect: Dialect) -> str:
    """Whether a line has open quotes at its end, or may have, for Spark."""
    has_quote = f"contains({text}, {literal(dialect.quote.decode())})"
    bare = f"{_unquoted(text, dialect)} RLIKE {literal(dialect.opening)}"
    return f"{has_quote} AND {bare}" if dialect.doubles else has_quote


def _unquoted(text: str, dialect: Dialect) -> str:
    """A record without what is in quotes, for Spark; with a quote left where one is open or none can tell."""
    if not dialect.doubles:
        return text
    single = f"replace({text}, {literal(dialect.quote.decode() * 2)}, '')"
    return f"regexp_replace({single}, {literal(dialect.quoted)}, '$1')"


def _read_whole(spark: SparkSession, files: Sequence[SourceFile]) -> None:
    """Have no file read in blocks from now on: a record may begin in one and end in another."""
    most = max(file.size for file in files) + 1
    for name, least in _SPLITS.items():
        spark.conf.set(name, str(max(most, least)))


def _joined(lines: DataFrame, dialect: Dialect, fields: int) -> DataFrame:
    schema = f"value BINARY, {FILE} STRING, {LINE} BIGINT, {FAULT} STRING"
    joined = lines.selectExpr("binary(value)", FILE).mapInArrow(JoinLines(dialect, [FILE, LINE, FAULT], fields), schema)
    return joined.selectExpr("string(value) AS value", FILE, f"bigint(NULL) AS {BLOCK}", LINE, FAULT)
