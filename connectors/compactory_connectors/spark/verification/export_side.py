"""Exported files beside the topic, up to the offsets that their manifest names.

Each row of the files must be the one that would be written now of what the topic has of the key there, in all columns.
A key that was written since may have lost the record of then to compaction: it says nothing about the export, and is
counted apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory.lookup.digest import DirectoryDigest, range_of
from compactory_connectors.source.reconcile.checker import Finding
from compactory_connectors.source.reconcile.progress import Progress, untold

from ..export.files import read
from ..export.folder import ExportFolder
from ..export.job import as_written
from ..export.manifest import Export, Manifest
from ..failures import spark_failures
from ..identifier import quoted
from ..record_batch import Batches
from .held import digest_listed
from .side import Differing, SideOutcome
from .topic_states import TopicStates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["compare_export"]

_RECORDS: Final = "key binary, digest binary"
_WITH_NULLS: Final = {"ignoreNullFields": "false"}
_MOST: Final = 50_000  # differing keys that are looked at
_DAY: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """An export as it lies there."""

    path: str
    manifest: Manifest
    rows: DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """The topic's digests, the files', and the keys that are not equal."""

    ours: DirectoryDigest
    theirs: DirectoryDigest
    suspects: dict[bytes, Finding]


def compare_export(
    topic: TopicStates,
    kafka: Kafka,
    path: str,
    *,
    most: int = 20,
    progress: Progress = untold,
) -> SideOutcome:
    """Compare an export with its topic; ``most`` differing keys are shown.

    Raises what reading the topic raises; an export that can't be compared, or whose files are not those of its
    manifest, is in the outcome.
    """
    began = time.monotonic()
    try:
        with spark_failures():
            files = _opened(topic, path)
            theirs = digest_listed(_digested(files.rows))
    except CompactoryError as error:
        seconds = time.monotonic() - began
        lasting = not error.retryable
        return SideOutcome(kind="export", place=path, failure=str(error), lasting=lasting, seconds=seconds)
    progress(f"export {path}", files.manifest.counts.rows)
    mine = _digested(_expected(topic, files.manifest)).persist()
    try:
        ours = digest_listed(mine)
        ranges = ours.differing(theirs)
        suspects = _suspects(mine, _digested(files.rows), ranges) if ranges else {}
        compared = _Compared(ours=ours, theirs=theirs, suspects=suspects)
        return _outcome(topic, kafka, files, compared, most, began)
    finally:
        mine.unpersist()


def _opened(topic: TopicStates, path: str) -> _Files:
    folder = ExportFolder(topic.spark, path)
    manifest = folder.manifest()
    if manifest.export is Export.HISTORY:
        raise CompactoryError(f"{path} is a history: only full and incremental exports can be compared with a topic")
    extent = topic.look()
    if manifest.topic != extent.topic or manifest.topic_id not in (None, extent.topic_id):
        raise CompactoryError(
            f"{path} is an export of topic {manifest.topic!r} of id {manifest.topic_id}, not of {extent.topic!r} of id"
            f" {extent.topic_id}"
        )
    found, named = ({each.name: each.bytes for each in files} for files in (folder.files(), manifest.files))
    if found != named:
        odd = sorted(name for name in found.keys() | named if found.get(name) != named.get(name))
        raise CompactoryError(
            f"{path}: {len(odd)} files are not those of its manifest, which were added, lost or changed in size:"
            f" {', '.join(odd[:3])}; export again"
        )
    return _Files(path=path, manifest=manifest, rows=read(topic.spark, path, manifest))


def _digested(rows: DataFrame) -> DataFrame:
    """Key and digest of rows as they are in files. An empty text may be nothing in a CSV file, also as a key."""
    from pyspark.sql import functions as f

    whole = f.to_json(f.struct(*sorted(map(quoted, rows.columns))), _WITH_NULLS)
    half = f.unhex(f.substring(f.sha2(whole, 256), 1, 32))
    return rows.select(f.coalesce("_key", f.lit("")).cast("binary").alias("key"), half.alias("digest"))


def _expected(topic: TopicStates, manifest: Manifest) -> DataFrame:
    """The rows that the export should have."""
    from pyspark.sql import functions as f

    latest = topic.at(manifest.ends)
    if manifest.export is Export.CHANGES:
        starts = [f.when(f.col("partition") == number, start) for number, start in manifest.starts.items()]
        latest = latest.where(f.col("offset") >= f.coalesce(*starts, f.lit(0)))
    return as_written(latest, manifest)


def _suspects(mine: DataFrame, rows: DataFrame, ranges: Collection[int]) -> dict[bytes, Finding]:
    """The keys of these ranges that are not equal; one that is there twice in the files is not."""
    from pyspark.sql import functions as f

    chosen = frozenset(ranges)

    def of_ranges(batches: Batches) -> Batches:
        for batch in batches:
            yield batch.filter(pa.array([range_of(key) in chosen for key in batch.column(0).to_pylist()], pa.bool_()))

    ours = mine.mapInArrow(of_ranges, _RECORDS).withColumnRenamed("digest", "ours")
    theirs = rows.mapInArrow(of_ranges, _RECORDS).groupBy("key").agg(f.collect_list("digest").alias("theirs"))
    unlike = f.col("ours").isNull() | f.col("theirs").isNull() | (f.array("ours") != f.col("theirs"))
    found = ours.join(theirs, "key", "full_outer").where(unlike).limit(_MOST).collect()
    return {bytes(key): _finding(ours, theirs) for key, ours, theirs in found}


def _finding(ours: bytes | None, theirs: Sequence[bytes] | None) -> Finding:
    if ours is None:
        return Finding.EXTRA
    return Finding.MISSING if theirs is None else Finding.DIFFERENT


def _outcome(
    topic: TopicStates, kafka: Kafka, files: _Files, compared: _Compared, most: int, began: float
) -> SideOutcome:
    manifest, suspects = files.manifest, compared.suspects
    since = topic.touched(manifest.ends, suspects)
    old = bool(suspects) and time.time() * 1000 - manifest.captured_ms > _retention(kafka, topic.topic)
    forgotten = {key for key, its in suspects.items() if its is Finding.EXTRA and old} - since
    stays = {key: its for key, its in suspects.items() if key not in since and key not in forgotten}
    shown = sorted(stays)[:most]
    expected = _shown(_expected(topic, manifest), shown) if shown else {}
    found = _shown(files.rows, shown) if shown else {}
    return SideOutcome(
        kind="export",
        place=files.path,
        positions=manifest.ends,
        behind=sum(max(0, end - manifest.ends.get(number, 0)) for number, end in topic.extent.ends.items()),
        expected=compared.ours.total.count,
        stored=compared.theirs.total.count,
        ranges=len(compared.ours.differing(compared.theirs)),
        findings=Counter(stays.values()),
        differences=[
            Differing(key=key, finding=stays[key], expected=expected.get(key), found=found.get(key)) for key in shown
        ],
        notes=list(_notes(len(since), len(forgotten), len(suspects))),
        seconds=time.monotonic() - began,
    )


def _notes(since: int, forgotten: int, suspects: int) -> Iterator[str]:
    if since:
        yield f"{since} keys were written after the export, and compaction has removed their exported records"
    if forgotten:
        yield f"{forgotten} keys are gone from the topic, and so are their tombstones: export anew to be sure"
    if suspects == _MOST:
        yield f"{_MOST} keys differ or more; no more were looked at"


def _retention(kafka: Kafka, topic: str) -> int:
    """For how many milliseconds the topic keeps tombstones at the least."""
    return int(kafka.topic_configs([topic]).get(topic, {}).get("delete.retention.ms", _DAY))


def _shown(rows: DataFrame, keys: Collection[bytes]) -> dict[bytes, bytes]:
    """The rows of some keys, as JSON."""
    from pyspark.sql import functions as f

    key = f.coalesce("_key", f.lit(""))
    found = rows.where(key.isin([key.decode(errors="replace") for key in keys]))
    return {name.encode(): row.encode() for name, row in found.select(key, f.to_json(f.struct("*"))).collect()}
