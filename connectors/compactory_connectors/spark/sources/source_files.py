"""The files of a source: which there are, and how they begin. Hadoop's file systems are asked, so HDFS and S3 do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pyspark.sql import SparkSession

from compactory.errors import ConfigError

from ..failures import misfits
from ..file_system import configuration, file_system, java, qualified, read_bytes
from ..rules.rules import FileFormat

__all__ = ["SourceFile", "beginning", "format_of", "list_files", "shown"]

_LEFT_OUT: Final = ("_", ".")
"""Beginnings of names that Spark takes for no data, and passes over without a word also where they are named."""
_COMPRESSED: Final = {".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"}
_SUFFIXES: Final = {
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".txt": FileFormat.CSV,
    ".json": FileFormat.JSON,
    ".jsonl": FileFormat.JSON,
    ".ndjson": FileFormat.JSON,
    ".parquet": FileFormat.PARQUET,
    ".orc": FileFormat.ORC,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file; ``path`` has its file system's scheme, ``size`` is in bytes as it is stored."""

    path: str
    size: int

    @property
    def here(self) -> Path | None:
        """Where it is on this machine; None where it is elsewhere, or has to be decompressed."""
        if not self.path.startswith("file:") or PurePosixPath(self.path).suffix.lower() in _COMPRESSED:
            return None
        return Path(shown(self.path))


def list_files(spark: SparkSession, sources: Iterable[str]) -> list[SourceFile]:
    """The files that paths, globs and folders name, in order; those that begin with ``_`` or ``.`` are left out.

    Raises ConfigError where one names no file.
    """
    problems: list[str] = []
    found: dict[str, SourceFile] = {}
    for source in sources:
        files = _named(spark, source)
        if not files:
            rest = "; names that begin with _ or . are left out" if PurePosixPath(source).name[:1] in _LEFT_OUT else ""
            place = shown(qualified(spark, source))
            problems.append(f"{place}: there is no such file, and nothing that it matches{rest}")
        found |= {file.path: file for file in files}
    if problems or not found:
        raise ConfigError(problems or "no file to load is named")
    return sorted(found.values(), key=lambda file: file.path)


def _named(spark: SparkSession, source: str) -> list[SourceFile]:
    system, path = file_system(spark, source)
    statuses = [system.getFileStatus(path)] if system.exists(path) else system.globStatus(path)
    return [file for status in statuses or () for file in _below(system, status)]


def _below(system: Any, status: Any) -> list[SourceFile]:
    """The files below a folder, or the file itself."""
    root, found = status.getPath(), []
    above = str((root if status.isDirectory() else root.getParent()).toString())
    files = system.listFiles(root, True)
    while files.hasNext():
        item = files.next()
        path = str(item.getPath().toString())
        if not any(part.startswith(_LEFT_OUT) for part in path.removeprefix(above).split("/")):
            found.append(SourceFile(path=path, size=int(item.getLen())))
    return found


def format_of(files: Sequence[SourceFile], given: FileFormat | None) -> FileFormat:
    """How the files are written, by their names where nobody says so. Raises ConfigError."""
    if given is not None:
        return given
    found = {_suffix(file.path) for file in files}
    formats = {_SUFFIXES.get(suffix) for suffix in found}
    if len(formats) == 1 and (only := formats.pop()) is not None:
        return only
    names = ", ".join(sorted(suffix or "none" for suffix in found))
    choices = ", ".join(item.value for item in FileFormat)
    raise ConfigError(f"how are the files written? their names end in {names}: give --format, one of {choices}")


def _suffix(path: str) -> str:
    name = PurePosixPath(path.lower())
    return PurePosixPath(name.stem).suffix if name.suffix in _COMPRESSED else name.suffix


def beginning(spark: SparkSession, path: str, most: int) -> bytes:
    """The first bytes of a file, decompressed. Raises ConfigError for a compressed one that is not whole."""
    system, place = file_system(spark, path)
    packages = java(spark).org.apache
    codec = packages.hadoop.io.compress.CompressionCodecFactory(configuration(spark)).getCodec(place)
    with misfits(shown(path), "is it whole? write or copy it again"):
        stream = system.open(place)
        content = codec.createInputStream(stream) if codec is not None else stream
        return read_bytes(spark, packages.commons.io.input.BoundedInputStream(content, most))


def shown(path: str) -> str:
    """A path as people write it: those of this machine without a scheme."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
