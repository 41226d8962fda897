"""Rejected rows: written for whoever has to mend them, and counted by reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from compactory.errors import ConfigError

from ..file_system import names_in, qualified
from ..identifier import literal, quoted
from ..sources.parts import FAULT, FILE, LINE, RAW
from ..sources.source_files import SourceFile
from .checks import REASONS, Reason

__all__ = ["Rejected", "check_folder", "refuse_source", "rejected", "some", "write"]

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


def check_folder(spark: SparkSession, folder: str) -> None:
    """See to it that writing there overwrites nothing but former rejects. Raises ConfigError."""
    others = sorted(name for name in names_in(spark, folder) if not _OURS.fullmatch(name))
    if others:
        raise ConfigError(
            f"--rejects {folder}: holds {others[0]!r}, which is no file of rejects; name a folder of its own"
        )


def refuse_source(spark: SparkSession, folder: str, files: Sequence[SourceFile]) -> None:
    """See to it that rejects are not written over what they are of. Raises ConfigError."""
    within = f"{qualified(spark, folder)}/"
    if any(file.path.startswith(within) for file in files):
        raise ConfigError(f"--rejects {folder}: has files that are to be loaded; name another folder")


def rejected(rows: DataFrame, columns: Sequence[str], reasons: Sequence[Reason]) -> DataFrame:
    """Rejects as they are written: file, line, reasons, and the record as it was, or else what was made of it."""
    # Spark's paths are percent-encoded, and those of this machine have a scheme that nobody types.
    file = rf"regexp_replace(url_decode(replace({FILE}, '+', '%2B')), r'\Afile:/+', '/') AS file"
    table = f"array({', '.join(map(_told, reasons))})"
    made = f"to_json(struct({', '.join(map(quoted, columns))}))"
    return rows.selectExpr(
        file,
        f"{LINE} AS line",
        f"transform({REASONS}, number -> get({table}, number)) AS reasons",
        f"coalesce({RAW}, {made}) AS record",
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


def some(frame: DataFrame, most: int) -> list[Rejected]:
    """A few rejects, to be shown."""
    return [
        Rejected(
            file=row["file"],
            line=row["line"],
            reasons=tuple(str(reason["text"]) for reason in row["reasons"]),
            record=row["record"],
        )
        for row in frame.limit(most).collect()
    ]
