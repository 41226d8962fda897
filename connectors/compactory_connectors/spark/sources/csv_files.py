"""CSV files → parts, one for each header: Spark's CSV reader takes the first header for all files of a read.

Lines are read by Spark's text reader and split by ``from_csv``, so that each record has its line number however many
tasks read a file. Files with line ends in quotes are read by Spark's CSV reader, which tells no lines.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Sequence
from functools import cache, partial
from typing import Final
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from compactory.errors import ConfigError

from ..failures import misfits
from ..identifier import literal
from ..rules.mapping import Layout
from ..rules.rules import ReadOptions
from .parts import BLOCK, FAULT, FILE, LINE, PLACE, PLACES, RAW, Part, count_blocks, position, read_lines
from .source_files import display_path

__all__ = ["read_csv"]

_NULL: Final = "\x00null\x00"
"""The text that stands for null, so that an empty field in quotes is an empty text."""
_BAD: Final = "_bad"
_NOT_BLANK: Final = r"trim(value) NOT IN ('', '\r')"


def read_csv(spark: SparkSession, files: Sequence[str], options: ReadOptions) -> list[Part]:
    """Return a part for each header. Headers of several files are found by one look through the files.

    Raises ConfigError for headers that can't be read, Unreachable where a file system does not answer.
    """
    groups = {b"": list(files)} if options.header else _by_header(spark, files)
    problems: list[str] = []
    if empty := set(files).difference(*groups.values()):
        problems += [f"{display_path(file)}: is empty, without even a header line" for file in sorted(empty)]
    layouts: dict[bytes, Layout] = {}
    for header, group in groups.items():
        label = display_path(group[0])
        try:
            layouts[header] = Layout(label=label, columns=options.header or _names(header, options, label))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    read = _whole_files if options.multiline else _lines
    return [read(spark, groups[header], header, layout, options) for header, layout in layouts.items()]


def _by_header(spark: SparkSession, files: Sequence[str]) -> dict[bytes, list[str]]:
    """Return the files by their first line that is not blank."""
    lines = read_lines(spark, files).where(_NOT_BLANK)
    if len(files) == 1:
        with misfits(display_path(files[0]), "is it whole? write or copy it again"):
            first = lines.selectExpr("binary(value)").first()
        return {} if first is None else {_without_end(first[0]): [*files]}
    headers = lines.selectExpr("binary(value) AS value", *PLACES).groupBy(FILE)
    groups: dict[bytes, list[str]] = {}
    paths = {display_path(file): file for file in files}
    for row in headers.agg(sf.expr(f"min_by(value, struct({BLOCK}, {LINE}))")).collect():
        groups.setdefault(_without_end(row[1]), []).append(paths[display_path(unquote(row[0]))])
    return dict(sorted(((header, sorted(group)) for header, group in groups.items()), key=lambda item: item[1]))


def _without_end(line: bytes) -> bytes:
    return bytes(line).rstrip(b"\r")


def _names(header: bytes, options: ReadOptions, label: str) -> tuple[str, ...]:
    """Return the columns that a header names. Raises ConfigError for another encoding or another line end."""
    try:
        text = header.decode(options.encoding)
    except UnicodeDecodeError:
        raise ConfigError(
            f"{label}: its header is not {options.encoding} text; say read.encoding in the rules"
        ) from None
    rows = csv.reader([text], delimiter=options.delimiter, quotechar=options.quote, escapechar=options.escape)
    try:
        return tuple(name.strip() for row in rows for name in row)
    except csv.Error as error:
        raise ConfigError(
            f"{label}: its header can't be read: {error}; lines must end with LF or CR LF, so convert a file with CR"
            " alone (tr '\\r' '\\n')"
        ) from None


def _signs(options: ReadOptions) -> dict[str, str]:
    """Return Spark's options for these files."""
    return {
        "sep": options.delimiter,
        "quote": options.quote,
        "escape": options.escape or options.quote,
        "nullValue": _NULL,
        "emptyValue": "",
        "columnNameOfCorruptRecord": _BAD,
        "mode": "PERMISSIVE",
    }


def _schema(layout: Layout) -> str:
    return ", ".join(f"{name} STRING" for name in [*map(position, range(len(layout.columns))), _BAD])


def _lines(spark: SparkSession, files: Sequence[str], header: bytes, layout: Layout, options: ReadOptions) -> Part:
    """Return the part of files with a record on each line. Blank lines and repeated headers are left out."""
    lines = read_lines(spark, files).selectExpr("value", *PLACES)
    is_utf8 = codecs.lookup(options.encoding).name in {"utf-8", "ascii", "utf-8-sig"}
    text = "make_valid_utf8(value)" if is_utf8 else f"decode(binary(value), {literal(options.encoding)})"
    is_bad = "NOT is_valid_utf8(value)" if is_utf8 else "false"
    record = f"if(endswith({text}, '\r'), trim(TRAILING '\r' FROM {text}), {text})"  # trim looks at each letter
    blank = f"trim({RAW}) <> ''" + (f" AND {RAW} <> {literal(header.decode(options.encoding))}" if header else "")
    signs = ", ".join(map(literal, sum(_signs(options).items(), ())))
    split = f"from_csv({RAW}, '{_schema(layout)}', map({signs})) AS split"
    faults = (
        f"CASE WHEN _is_bad THEN 'encoding' WHEN {_is_open(options)} THEN 'quote'"
        f" WHEN split.{_BAD} IS NOT NULL THEN concat('columns', {_columns_fault(options, len(layout.columns))}) END"
    )
    frame = (
        lines.selectExpr(f"{record} AS {RAW}", *PLACE, f"{is_bad} AS _is_bad")
        .where(blank)
        .selectExpr(split, *PLACE, RAW, "_is_bad")
        .selectExpr("split.*", *PLACE, RAW, f"{faults} AS {FAULT}")
    )
    return Part(layout=layout, frame=frame, blocks=cache(partial(count_blocks, lines)))


def _whole_files(
    spark: SparkSession, files: Sequence[str], header: bytes, layout: Layout, options: ReadOptions
) -> Part:
    """Return the part of files with line ends in quotes. Raises ConfigError for a quote that is never closed."""
    _refuse_open_quotes(spark, files, options)
    reader = spark.read.options(**_signs(options)).option("__globPaths__", "false").option("multiLine", "true")
    reader = reader.option("encoding", options.encoding).option("header", str(bool(header)).lower())
    columns = [position(number) for number in range(len(layout.columns))]
    place = (f"_metadata.file_path AS {FILE}", f"bigint(NULL) AS {BLOCK}", f"bigint(NULL) AS {LINE}")
    fault = f"if({_BAD} IS NULL, NULL, 'columns') AS {FAULT}"
    frame = reader.schema(_schema(layout)).csv([*files])
    return Part(layout=layout, frame=frame.selectExpr(*columns, *place, f"{_BAD} AS {RAW}", fault))


def _refuse_open_quotes(spark: SparkSession, files: Sequence[str], options: ReadOptions) -> None:
    """Refuse files with an odd number of quotes: Spark would take the rest of such a file for one text."""
    bare = "value" if options.escape is None else f"regexp_replace(value, {literal(_sign(options.escape) + '.')}, '')"
    quotes = f"sum(length({bare}) - length(replace({bare}, {literal(options.quote)}, ''))) % 2 = 1 AS is_open"
    lines = read_lines(spark, files).selectExpr("value", f"_metadata.file_path AS {FILE}")
    open_files = lines.groupBy(FILE).agg(sf.expr(quotes)).where("is_open").select(FILE).limit(10).collect()
    if open_files:
        raise ConfigError(
            f"{display_path(row[0])}: has an odd number of quotes, so one is never closed; correct it, or set"
            " read.multiline: false in the rules to reject its line alone"
            for row in open_files
        )


def _columns_fault(options: ReadOptions, expected: int) -> str:
    """SQL of the number of columns of a record, for :data:`FAULT`; empty where it is not certain."""
    bare = _without_quoted(options)
    count = f"(regexp_count({bare}, {literal(re.escape(options.delimiter))}) + 1)"
    is_certain = f"NOT contains({bare}, {literal(options.quote)}) AND {count} <> {expected}"
    text = f"concat(':has ', {count}, if({count} = 1, ' column', ' columns'), '; the header has {expected}')"
    return f"if({is_certain}, {text}, '')"


def _is_open(options: ReadOptions) -> str:
    """SQL that is true for a record with a quote that is not closed on its line."""
    opening = f"(^|{_sign(options.delimiter)}){_sign(options.quote)}"
    return f"contains({RAW}, {literal(options.quote)}) AND {_without_quoted(options)} RLIKE {literal(opening)}"


def _without_quoted(options: ReadOptions) -> str:
    """SQL of a record without its texts in quotes."""
    quote = _sign(options.quote)
    escaped = (options.escape or options.quote) + options.quote
    if options.escape in {None, options.quote}:
        single = f"replace({RAW}, {literal(escaped)}, '')"
    else:
        single = f"regexp_replace({RAW}, {literal(_sign(options.escape or '') + '.')}, '')"
    pattern = f"(^|{_sign(options.delimiter)}){quote}[^{quote}]*{quote}"
    return f"regexp_replace({single}, {literal(pattern)}, '$1')"


def _sign(sign: str) -> str:
    """Return a regular expression of Java for a character."""
    return f"\\x{{{ord(sign):x}}}"
