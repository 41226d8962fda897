"""A source → parts: files of any format, or a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from ..failures import misfits
from ..identifier import quoted
from ..rules.mapping import Layout
from ..rules.rules import FileFormat, ReadOptions
from .csv_files import read_csv
from .json_files import read_json
from .parts import BLOCK, FAULT, FILE, LINE, RAW, Part, position
from .source_files import display_path

__all__ = ["read_files", "read_frame"]

_SCHEMAS_AT_ONCE: Final = 8


def read_files(
    spark: SparkSession, files: Sequence[str], kind: FileFormat, options: ReadOptions, fields: Sequence[str]
) -> list[Part]:
    """Parts of these files. JSON files are counted now; of Parquet and ORC the schemas are read.

    ``fields`` are those of interest in JSON. Raises ConfigError for files that can't be read so, Unreachable where a
    file system does not answer.
    """
    spark.conf.set("spark.sql.legacy.javaCharsets", "true")  # windows-1252 and others that Spark 4 leaves out
    if kind is FileFormat.CSV:
        return read_csv(spark, files, options)
    if kind is FileFormat.JSON:
        return [read_json(spark, files, fields)]
    return _read_columnar(spark, files, kind)


def read_frame(frame: DataFrame, label: str) -> Part:
    """Return the rows of a DataFrame as a part."""
    return _part(frame, label, located=None)


def _reader(spark: SparkSession, kind: FileFormat) -> DataFrameReader:
    return spark.read.option("__globPaths__", "false").format(kind.value)


def _read_columnar(spark: SparkSession, files: Sequence[str], kind: FileFormat) -> list[Part]:
    """Return a part for each schema. Spark reads the schema of each file by itself, several at a time."""
    name = kind.value.upper() if kind is FileFormat.ORC else kind.value.title()
    remedy = f"is it whole, and {name}, with types that Spark has?"
    if kind is FileFormat.PARQUET:
        remedy += " For nanoseconds: pandas' to_parquet(coerce_timestamps='us', allow_truncated_timestamps=True)"
    groups: dict[str, tuple[StructType, list[str]]] = {}
    with ThreadPoolExecutor(_SCHEMAS_AT_ONCE) as threads:
        schemas = threads.map(lambda file: _reader(spark, kind).load(file).schema, files)
        for file in files:
            with misfits(display_path(file), remedy):
                schema = next(schemas)
            groups.setdefault(schema.json(), (schema, []))[1].append(file)
    return [
        _part(_reader(spark, kind).schema(schema).load(group), display_path(group[0]), located=kind)
        for schema, group in groups.values()
    ]


def _part(frame: DataFrame, label: str, *, located: FileFormat | None) -> Part:
    """Columns by position: names may have dots, or differ in case alone."""
    names = frame.columns
    file = "_metadata.file_path" if located else "string(NULL)"
    row = "_metadata.row_index + 1" if located is FileFormat.PARQUET else "bigint(NULL)"
    columns = [f"{quoted(name)} AS {position(number)}" for number, name in enumerate(names)]
    place = [f"{file} AS {FILE}", f"bigint(NULL) AS {BLOCK}", f"{row} AS {LINE}"]
    selected = frame.selectExpr(*columns, *place, f"string(NULL) AS {RAW}", f"string(NULL) AS {FAULT}")
    return Part(layout=Layout(label=label, columns=tuple(names)), frame=selected)
