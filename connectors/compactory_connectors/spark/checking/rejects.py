"""Rejected rows: written for whoever has to mend them, and counted by reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import ConfigError

from ..identifier import literal, quoted
from ..sources.parts import FAULT, FILE, LINE, RAW
from ..sources.source_files import files_below
from ..target import Received
from .checks import REASONS, Checks, Reason

__all__ = ["Counted", "Rejected", "check_folder", "count", "rejected", "some", "write"]

_OURS: Final = re.compile(r"(part-.*\.json(\..*)?|_SUCCESS|_temporary|\..*)")
_A_FILE: Final = 250_000
"""Rows in a file of rejects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A rejected row, for people to look at."""

    file: str | None
    line: int | None
    reasons: tuple[str, ...]
    record: str


def check_folder(spark: SparkSession, folder: str, files: Sequence[str]) -> None:
    """Raise ConfigError if writing there would overwrite one of the files to be loaded, or other files than rejects."""
    existing = files_below(spark, folder)
    if not set(existing).isdisjoint(files):
        raise ConfigError(f"--rejects {folder}: has files that are to be loaded; name another folder")
    foreign = sorted(name for file in existing if not _OURS.fullmatch(name := PurePosixPath(file).name))
    if foreign:
        raise ConfigError(
            f"--rejects {folder}: holds {foreign[0]!r}, which is no file of rejects; name a folder of its own"
        )


def rejected(rows: DataFrame, columns: Sequence[str], reasons: Sequence[Reason]) -> DataFrame:
    """Rejects as they are written: file, line, reasons, and the record as it was, or else what was made of it."""
    # Spark's paths are percent-encoded, and those of this machine have a scheme that nobody types.
    file = rf"regexp_replace(url_decode(replace({FILE}, '+', '%2B')), r'\Afile:/+', '/') AS file"
    table = f"array({', '.join(map(_told, reasons))})"
    converted = f"to_json(struct({', '.join(map(quoted, columns))}))"
    return rows.selectExpr(
        file,
        f"{LINE} AS line",
        f"transform({REASONS}, number -> get({table}, number)) AS reasons",
        f"coalesce({RAW}, {converted}) AS record",
    )


def _told(reason: Reason) -> str:
    text = literal(str(reason))
    if reason.rule == "record":
        text = f"coalesce(nullif(split_part({FAULT}, ':', 2), ''), {text})"
    return f"named_struct('column', {literal(reason.column)}, 'rule', {literal(reason.rule)}, 'text', {text})"


def write(frame: DataFrame, folder: str, count: int) -> None:
    """Write rejects as JSON lines, by file and line, in place of former ones."""
    files = frame.repartition(1 + count // _A_FILE, "file") if count > _A_FILE else frame.repartition(1)
    files.sortWithinPartitions("file", "line").write.mode("overwrite").json(folder)


def some(frame: DataFrame, limit: int) -> list[Rejected]:
    """A few rejects, to be shown."""
    return [
        Rejected(
            file=row["file"],
            line=row["line"],
            reasons=tuple(str(reason["text"]) for reason in row["reasons"]),
            record=row["record"],
        )
        for row in frame.limit(limit).collect()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Rows that were read, those of them that are rejected, and how many for each reason, most first."""

    read: int
    rejected: int
    reasons: Mapping[Reason, int]


def count(checks: Checks, rows: DataFrame | None, received: Received | None = None) -> Counted:
    """Count checked rows by their reasons, and add the rows that a target has ``received``."""
    read, rejected = received.rows if received is not None else 0, 0
    counted: dict[Reason, int] = {}
    for row in rows.groupBy(REASONS).count().collect() if rows is not None else ():
        reasons = [checks.reasons[number] for number in row[REASONS] or ()]
        read += row["count"]
        rejected += row["count"] if reasons else 0
        for reason in reasons:
            counted[reason] = counted.get(reason, 0) + row["count"]
    return Counted(read=read, rejected=rejected, reasons=dict(sorted(counted.items(), key=lambda item: -item[1])))
