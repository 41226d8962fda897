"""Footers of Parquet files, which tell the files that have the same columns."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from ..file_system import configuration, java
from .source_files import SourceFile

__all__ = ["alike"]

_SPARKS: Final = "org.apache.spark.sql.parquet.row.metadata"
"""Where Spark writes its own schema of a file."""
_AT_ONCE: Final = 8
"""Footers that are read at once: an object store takes its time for each."""


def alike(spark: SparkSession, files: Sequence[SourceFile]) -> list[list[SourceFile]]:
    """Groups of files for which Spark infers one schema. The driver reads footers: Spark would run a job for each file.

    A file that can't be read is a group of its own: Spark tells the reason better.
    """
    if len(files) == 1:
        return [[*files]]
    apache, hadoop = java(spark).org.apache, configuration(spark)
    path, reader = apache.hadoop.fs.Path, apache.parquet.hadoop.ParquetFileReader

    def schema(file: SourceFile) -> str:
        try:
            footer: Any = reader.readFooter(hadoop, path(file.path)).getFileMetaData()
        except Py4JJavaError:
            return file.path
        return f"{footer.getSchema().toString()} {footer.getKeyValueMetaData().get(_SPARKS)}"

    groups: dict[str, list[SourceFile]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for file, found in zip(files, threads.map(schema, files), strict=True):
            groups.setdefault(found, []).append(file)
    return [*groups.values()]
