"""The description of an export: its records, their number and digest, its files. Pure; written as JSON.

``_manifest.json`` is written last: a folder without it holds no export, whatever else is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

from compactory.directory import Envelope
from compactory.errors import ConfigError
from compactory.read.digest import VERSION as DIGEST_VERSION
from compactory.read.digest import DirectoryDigest, RangeDigest

from ..html import report_html

__all__ = ["MANIFEST", "VERSION", "Counts", "Export", "ExportFile", "Manifest", "Place", "read_manifest"]

MANIFEST: Final = "_manifest.json"
"""Its name within an export's folder. Spark leaves names that begin with ``_`` aside."""

VERSION: Final = 1


class Export(StrEnum):
    """Which rows an export has."""

    FULL = "full"
    """The newest of each key that lives."""
    CHANGES = "changes"
    """Of each key that was written or removed since another export, what became of it."""
    HISTORY = "history"
    """Every version that the topic still has, and from when to when it was the newest."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A bad record: its row has no fields, or it has no row as its key is no text."""

    partition: int
    offset: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """A file of the export, by its name within the folder."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """``rows`` in the files; of them ``deletes`` remove their key and ``bad`` can't be read.

    ``tombstones`` and ``inactive`` are keys whose newest record says that they are deleted, ``nameless`` records whose
    key is not UTF-8.
    """

    rows: int
    deletes: int = 0
    bad: int = 0
    tombstones: int = 0
    inactive: int = 0
    nameless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An export. ``starts`` and ``ends`` are offsets by partition: the first, and the one after the last.

    ``digest`` is that of the topic's keys and values of all rows, by ranges of keys; removed keys have none.
    ``columns`` are names and Spark's types of the fields; those of the record, which begin with ``_``, are not there.
    """

    export: Export
    directory: str
    topic: str
    topic_id: str | None
    key: str | None
    active: str | None
    envelope: Envelope
    captured_ms: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    format: str
    columns: Mapping[str, str]
    fixed: bool = False
    left_out: tuple[str, ...] = ()
    """Fields that have no column: their names differ from another's in case alone, or are a record's column's."""
    counts: Counts
    bad_records: tuple[Place, ...] = ()
    digest: DirectoryDigest = field(default_factory=DirectoryDigest, repr=False)
    files: tuple[ExportFile, ...] = ()

    def to_json(self) -> bytes:
        """The content of the file."""
        found = asdict(self)
        total = self.digest.total
        ranges = [[each.count, str(each)] for each in self.digest.ranges]
        found["digest"] = {"version": DIGEST_VERSION, "count": total.count, "sums": str(total), "ranges": ranges}
        for name in ("starts", "ends"):
            found[name] = {str(number): offset for number, offset in sorted(getattr(self, name).items())}
        return orjson.dumps({"version": VERSION, **found}, option=orjson.OPT_INDENT_2) + b"\n"

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        left_out = [f"fields without a column: {', '.join(self.left_out)}"] if self.left_out else []
        bad = [f"bad record: partition {bad.partition}, offset {bad.offset}: {bad.error}" for bad in self.bad_records]
        counts = [(name, count) for name, count in asdict(self.counts).items() if count or name == "rows"]
        return report_html(f"{self.export.value} export of topic {self.topic}", counts, [*left_out, *bad[:10]])


def read_manifest(content: bytes, where: str) -> Manifest:
    """The manifest in a file's content. Raises ConfigError naming ``where`` for anything else."""
    from pydantic import TypeAdapter  # which tasks are spared

    try:
        found: dict[str, Any] = orjson.loads(content)
        if found.pop("version") != VERSION:
            raise ConfigError(f"{where} was written by another version of compactory: export in full again")
        digest = found.pop("digest")
        if digest["version"] != DIGEST_VERSION:
            raise ConfigError(f"{where} has digests of another definition: export in full again")
        ranges = DirectoryDigest([RangeDigest.read(*each) for each in digest["ranges"]])
        return TypeAdapter(Manifest).validate_python({**found, "digest": ranges})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{where} is no manifest of an export ({type(error).__name__}: {said})") from error
