"""Exported files beside the topic, up to the offsets that their manifest names.

Each row of the files must be the one that would be written now of what the topic has of the key there, in all columns.
A key that was written since may have lost the record of then to compaction: it says nothing about the export, and is
counted apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory.read.digest import range_of
from compactory_connectors.source.verify.checker import Finding
from compactory_connectors.source.verify.outcome import Progress, ignore_progress

from ..export.folder import ExportFolder, flattened
from ..export.increments import tombstones_kept
from ..export.manifest import Export, Manifest
from ..export.rows import Shape, rows
from ..failures import spark_failures
from ..identifier import quoted
from ..record_batch import in_arrow
from .side import Differing, SideOutcome
from .topic_states import TopicStates

__all__ = ["compare_export"]

_WITH_NULLS: Final = {"ignoreNullFields": "false"}
_MOST: Final = 50_000  # differing keys that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """An export as it lies there. ``digests`` has each key with one digest, and how many ``times`` it is there."""

    path: str
    manifest: Manifest
    rows: DataFrame
    digests: DataFrame
    stored: int


def compare_export(
    topic: TopicStates, kafka: Kafka, path: str, *, most: int = 20, progress: Progress = ignore_progress
) -> SideOutcome:
    """Compare an export with its topic; ``most`` differing keys are shown.

    Raises what reading the topic raises; an export that can't be compared, or whose files are not those of its
    manifest, is in the outcome.
    """
    began = time.monotonic()
    with ExitStack() as kept:
        try:
            with spark_failures():
                files = _opened(topic, path, kept)
        except CompactoryError as error:
            found = SideOutcome(kind="export", place=path, failure=str(error), lasting=not error.retryable)
        else:
            progress(f"export {path}", files.manifest.counts.rows)
            found = _outcome(topic, kafka, files, kept, most)
    return replace(found, seconds=time.monotonic() - began)


def _opened(topic: TopicStates, path: str, kept: ExitStack) -> _Files:
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
    rows = folder.read(manifest)
    its = _digested(rows).groupBy("key").agg(f.min("digest").alias("theirs"), f.count("digest").alias("times"))
    kept.callback(its.persist().unpersist)
    stored = its.agg(f.sum("times")).first()
    assert stored is not None
    return _Files(path=path, manifest=manifest, rows=rows, digests=its, stored=stored[0] or 0)


def _digested(rows: DataFrame) -> DataFrame:
    """Key and digest of rows as they are in files. An empty text may be nothing in a CSV file, also as a key."""
    whole = f.to_json(f.struct(*sorted(map(quoted, rows.columns))), _WITH_NULLS)
    half = f.unhex(f.substring(f.sha2(whole, 256), 1, 32))
    return rows.select(f.coalesce("_key", f.lit("")).cast("binary").alias("key"), half.alias("digest"))


def _expected(topic: TopicStates, manifest: Manifest) -> DataFrame:
    """The rows that the export should have, as :meth:`ExportFolder.read` reads them."""
    latest = topic.at(manifest.ends)
    if manifest.export is Export.CHANGES:
        starts = [f.when(f.col("partition") == number, start) for number, start in manifest.starts.items()]
        latest = latest.where(f.col("offset") >= f.coalesce(*starts, f.lit(0)))
    shape = Shape.of(manifest)
    return flattened(in_arrow(latest, rows(shape, lambda _: None), shape.schema), manifest.format)


def _compared(topic: TopicStates, files: _Files, kept: ExitStack) -> tuple[int, dict[bytes, Finding]]:
    """How many rows the files should have, and the keys that are not equal, as one is that is there twice."""
    mine = _digested(_expected(topic, files.manifest)).withColumnRenamed("digest", "ours")
    both = mine.join(files.digests, "key", "full_outer")
    kept.callback(both.persist().unpersist)
    unlike = ~f.col("ours").eqNullSafe(f.col("theirs")) | (f.col("times") > 1)
    counted = both.agg(f.count("ours"), f.count_if(unlike)).first()
    assert counted is not None
    found = both.where(unlike).limit(_MOST).collect() if counted[1] else []
    return counted[0], {bytes(row.key): _finding(row.ours, row.theirs) for row in found}


def _finding(ours: bytes | None, theirs: bytes | None) -> Finding:
    if ours is None:
        return Finding.EXTRA
    return Finding.MISSING if theirs is None else Finding.DIFFERENT


def _outcome(topic: TopicStates, kafka: Kafka, files: _Files, kept: ExitStack, most: int) -> SideOutcome:
    manifest = files.manifest
    count, suspects = _compared(topic, files, kept)
    since = topic.touched(manifest.ends, suspects)
    old = bool(suspects) and time.time() * 1000 - manifest.captured_ms > tombstones_kept(kafka, topic.topic)
    forgotten = {key for key, its in suspects.items() if its is Finding.EXTRA and old} - since
    stays = {key: its for key, its in suspects.items() if key not in since and key not in forgotten}
    shown = sorted(stays)[:most]
    expected = _shown(_expected(topic, manifest), shown) if shown else {}
    found = _shown(files.rows, shown) if shown else {}
    return SideOutcome(
        kind="export",
        place=files.path,
        positions=manifest.ends,
        behind=topic.extent.behind(manifest.ends),
        expected=count,
        stored=files.stored,
        ranges=len({range_of(key) for key in suspects}),
        findings=Counter(stays.values()),
        differences=[
            Differing(key=key, finding=stays[key], expected=expected.get(key), found=found.get(key)) for key in shown
        ],
        notes=list(_notes(len(since), len(forgotten), len(suspects))),
    )


def _notes(since: int, forgotten: int, suspects: int) -> Iterator[str]:
    if since:
        yield f"{since} keys were written after the export, and compaction has removed their exported records"
    if forgotten:
        yield f"{forgotten} keys are gone from the topic, and so are their tombstones: export anew to be sure"
    if suspects == _MOST:
        yield f"{_MOST} keys differ or more; no more were looked at"


def _shown(rows: DataFrame, keys: Collection[bytes]) -> dict[bytes, bytes]:
    """The rows of some keys, as JSON."""
    key = f.coalesce("_key", f.lit(""))
    found = rows.where(key.isin([key.decode(errors="replace") for key in keys]))
    return {name.encode(): row.encode() for name, row in found.select(key, f.to_json(f.struct("*"))).collect()}
