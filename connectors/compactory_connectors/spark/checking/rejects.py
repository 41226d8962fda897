"""Rejected rows: written for whoever has to mend them, and counted by reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from compactory.errors import ConfigError

from ..identifier import quoted
from ..rules.parts import FAULT, FILE, LINE, RAW
from ..sources.source_files import SourceFile, names_in, qualified
from .checks import REASONS, Reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
    others = [name for name in names_in(spark, folder) if not _OURS.fullmatch(name)]
    if others:
        raise ConfigError(
            f"--rejects {folder}: holds {others[0]!r}, which is no file of rejects; name a folder of its own"
        )


def refuse_source(spark: SparkSession, folder: str, files: Sequence[SourceFile]) -> None:
    """See to it that rejects are not written over what they are of. Raises ConfigError."""
    within = f"{qualified(spark, folder)}/"
    if any(file.path.startswith(within) for file in files):
        raise ConfigError(f"--rejects {folder}: holds what is to be loaded; name a folder of its own")


def rejected(rows: DataFrame, columns: Sequence[str], reasons: Sequence[Reason]) -> DataFrame:
    """Rejects as they are written: file, line, reasons, and the record as it was, or else what was made of it."""
    from pyspark.sql import functions as sf

    made = sf.to_json(sf.struct(*[sf.col(quoted(name)) for name in columns]))
    return rows.select(_path().alias("file"), sf.col(LINE).alias("line"), _told(reasons), _record(made))


def _told(reasons: Sequence[Reason]) -> Column:
    from pyspark.sql import functions as sf

    facts = sf.nullif(sf.split_part(FAULT, sf.lit(":"), sf.lit(2)), sf.lit(""))
    table = sf.array(*[_struct(reason, facts) for reason in reasons])
    return sf.transform(REASONS, lambda number: sf.get(table, number)).alias("reasons")


def _struct(reason: Reason, facts: Column) -> Column:
    from pyspark.sql import functions as sf

    text = sf.coalesce(facts, sf.lit(str(reason))) if reason.rule == "record" else sf.lit(str(reason))
    parts = {"column": sf.lit(reason.column), "rule": sf.lit(reason.rule), "text": text}
    return sf.struct(*[part.alias(name) for name, part in parts.items()])


def _record(otherwise: Column) -> Column:
    from pyspark.sql import functions as sf

    return sf.coalesce(sf.col(RAW), otherwise).alias("record")


def _path() -> Column:
    """Spark's file paths are percent-encoded, and those of this machine have a scheme that nobody types."""
    from pyspark.sql import functions as sf

    plain = sf.url_decode(sf.replace(sf.col(FILE), sf.lit("+"), sf.lit("%2B")))
    return sf.regexp_replace(plain, r"\Afile:/+", "/")


def write(frame: DataFrame, folder: str, count: int) -> None:
    """Write rejects as JSON lines, by file and line, in place of former ones."""
    files = frame.repartition(1 + count // _A_FILE, "file") if count > _A_FILE else frame.repartition(1)
    files.sortWithinPartitions("file", "line").write.mode("overwrite").json(folder)


def some(frame: DataFrame, most: int) -> list[Rejected]:
    """A few rejects, to be shown."""
    return [_shown(row.asDict(recursive=True)) for row in frame.limit(most).collect()]


def _shown(row: Mapping[str, Any]) -> Rejected:
    reasons = tuple(str(reason["text"]) for reason in row["reasons"])
    return Rejected(file=row["file"], line=row["line"], reasons=reasons, record=row["record"])
