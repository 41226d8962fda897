"""The files that a source's paths, globs and folders name, as Spark lists them, and their format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from compactory.errors import ConfigError

from ..failures import spark_failures
from ..rules.rules import FileFormat

__all__ = ["display_path", "files_below", "format_of", "list_files"]

_SKIPPED: Final = ("_", ".")
"""Beginnings of the names of files that Spark skips without a message, also where they are named."""
_COMPRESSED: Final = {".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"}
_FORMATS: Final = {
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".txt": FileFormat.CSV,
    ".json": FileFormat.JSON,
    ".jsonl": FileFormat.JSON,
    ".ndjson": FileFormat.JSON,
    ".parquet": FileFormat.PARQUET,
}


def list_files(spark: SparkSession, sources: Iterable[str]) -> list[str]:
    """Return the paths of the files that paths, globs and folders name, sorted. Spark skips names with ``_`` or ``.``.

    Raises ConfigError where one names no file.
    """
    problems: list[str] = []
    files: set[str] = set()
    for source in sources:
        named = files_below(spark, source) or files_below(spark, source, is_glob=True)
        if not named:
            skipped = PurePosixPath(source).name.startswith(_SKIPPED)
            hint = "; names that begin with _ or . are left out" if skipped else ""
            problems.append(f"{display_path(source)}: there is no such file, and nothing that it matches{hint}")
        files.update(named)
    if problems or not files:
        raise ConfigError(problems or "no file to load is named")
    return sorted(files)


def files_below(spark: SparkSession, path: str, *, is_glob: bool = False) -> list[str]:
    """Return the file of this path, or the files in the folder; none where there is nothing.

    Raises Unreachable where the file system does not answer.
    """
    if is_glob and not re.search(r"[*?\[{]", path):
        return []
    options = {"recursiveFileLookup": "true", "__globPaths__": str(is_glob).lower()}
    with spark_failures():
        try:
            return [unquote(file) for file in spark.read.options(**options).text(path).inputFiles()]
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return []


def format_of(files: Sequence[str], requested: FileFormat | None) -> FileFormat:
    """Return the format of files by their names, or the requested one. Raises ConfigError."""
    if requested is not None:
        return requested
    suffixes = {_suffix(file) for file in files}
    formats = {_FORMATS.get(suffix) for suffix in suffixes}
    if len(formats) == 1 and (only := formats.pop()) is not None:
        return only
    names = ", ".join(sorted(suffix or "none" for suffix in suffixes))
    choices = ", ".join(item.value for item in FileFormat)
    raise ConfigError(
        f"how are the files written? their names end in {names}: give --format, one of {choices}; of files in other"
        " formats load() takes a DataFrame"
    )


def _suffix(path: str) -> str:
    name = PurePosixPath(path.lower())
    return PurePosixPath(name.stem).suffix if name.suffix in _COMPRESSED else name.suffix


def display_path(path: str) -> str:
    """Return a path as people write it: those of this machine without a scheme."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
