"""A source → parts: files, or a DataFrame."""

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
_REMEDY: Final = (
    "is it whole, and Parquet, with types that Spark has? For nanoseconds: pandas' to_parquet(coerce_timestamps='us',"
    " allow_truncated_timestamps=True)"
)


def read_files(spark: SparkSession, files: Sequence[str], kind: FileFormat, options: ReadOptions) -> list[Part]:
    """Return the parts of these files. JSON files are counted now; of Parquet the schemas are read.

    Raises ConfigError for files that can't be read so, Unreachable where a file system does not answer.
    """
    spark.conf.set("spark.sql.legacy.javaCharsets", "true")  # windows-1252 and others that Spark 4 leaves out
    if kind is FileFormat.CSV:
        return read_csv(spark, files, options)
    return [read_json(spark, files)] if kind is FileFormat.JSON else _read_parquet(spark, files)


def read_frame(frame: DataFrame, label: str) -> Part:
    """Return the rows of a DataFrame as a part."""
    return _part(frame, label, is_file=False)


def _read_parquet(spark: SparkSession, files: Sequence[str]) -> list[Part]:
    """Return a part for each schema. Spark reads the schema of each file by itself, several at a time."""

    def reader() -> DataFrameReader:
        return spark.read.option("__globPaths__", "false")

    groups: dict[str, tuple[StructType, list[str]]] = {}
    with ThreadPoolExecutor(_SCHEMAS_AT_ONCE) as threads:
        schemas = threads.map(lambda file: reader().parquet(file).schema, files)
        for file in files:
            with misfits(display_path(file), _REMEDY):
                schema = next(schemas)
            groups.setdefault(schema.json(), (schema, []))[1].append(file)
    return [
        _part(reader().schema(schema).parquet(*group), display_path(group[0]), is_file=True)
        for schema, group in groups.values()
    ]


def _part(frame: DataFrame, label: str, *, is_file: bool) -> Part:
    """Columns by position: names may have dots, or differ in case alone."""
    names = frame.columns
    file, row = ("_metadata.file_path", "_metadata.row_index + 1") if is_file else ("string(NULL)", "bigint(NULL)")
    columns = [f"{quoted(name)} AS {position(number)}" for number, name in enumerate(names)]
    place = [f"{file} AS {FILE}", f"bigint(NULL) AS {BLOCK}", f"{row} AS {LINE}"]
    selected = frame.selectExpr(*columns, *place, f"string(NULL) AS {RAW}", f"string(NULL) AS {FAULT}")
    return Part(layout=Layout(label=label, columns=tuple(names)), frame=selected)
