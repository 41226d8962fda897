"""Exported files beside the topic, up to the offsets that their manifest names.

What a file's row is made of, the record's key and value, must be what the topic has of the key there; and the columns
must be what is made of that value. A key that was written since may have lost the record of then to compaction: it says
nothing about the export, and is counted apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from compactory.digest import RANGES, DirectoryDigest, range_of, record_digest
from compactory.directory import Directory
from compactory.errors import CompactoryError
from compactory.kafka import Kafka
from compactory_connectors.source.verification.judgement import Finding

from .export_folder import ExportFolder
from .export_reading import read
from .failures import spark_failures
from .held import digest_listed, list_held
from .manifest import Export, Manifest
from .side import Differing, SideOutcome
from .topic_states import TopicStates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["compare_export"]

_RECORDS: Final = "key binary, digest binary"
_SCHEMA: Final = pa.schema([("key", pa.binary()), ("digest", pa.binary())])
REMOVED: Final = b"\0" * 16
"""In place of the digest of a row that removes its key."""

_MOST: Final = 50_000  # differing keys that are looked at
_OF_TEXT: Final = {"csv", "json"}
"""Formats that have no room for a value that is no text: such a record is bad, and its row has none."""

_DAY: Final = 86_400_000

Batches = Iterator[pa.RecordBatch]

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """An export as it lies there."""

    path: str
    manifest: Manifest
    rows: DataFrame
    """Key and digest of each row."""


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
    progress: Progress = lambda _doing, _done: None,
) -> SideOutcome:
    """Compare an export with its topic; ``most`` differing keys are shown.

    Raises what reading the topic raises; an export that can't be compared, or whose files are not those of its
    manifest, is in the outcome.
    """
    began = time.monotonic()
    try:
        with spark_failures():
            files = _opened(topic, path)
            theirs = digest_listed(files.rows)
    except CompactoryError as error:
        return SideOutcome(kind="export", place=path, failure=str(error), seconds=time.monotonic() - began)
    progress(f"export {path}", files.manifest.counts.rows)
    mine = _expected(topic, files.manifest).persist()
    try:
        ours = digest_listed(mine)
        ranges = ours.differing(theirs)
        suspects = _suspects(mine, files.rows, ranges) if ranges else {}
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
    return _Files(path=path, manifest=manifest, rows=_rows(topic.spark, path, manifest))


def _rows(spark: SparkSession, path: str, manifest: Manifest) -> DataFrame:
    columns = ["_key", "_value", *(["_op"] if manifest.export is Export.CHANGES else [])]
    return read(spark, path, manifest).select(*columns).mapInArrow(_digested, _RECORDS)


def _digested(batches: Batches) -> Batches:
    for batch in batches:
        keys = [(key or "").encode() for key in batch.column(0).to_pylist()]  # an empty text is nothing in a CSV file
        values = [value.encode() if isinstance(value, str) else value or b"" for value in batch.column(1).to_pylist()]
        operations = batch.column(2).to_pylist() if batch.num_columns > 2 else ["put"] * len(keys)
        digests = [
            REMOVED if operation == "delete" else record_digest(key, value)
            for key, value, operation in zip(keys, values, operations, strict=True)
        ]
        yield pa.record_batch([pa.array(keys, pa.binary()), pa.array(digests, pa.binary())], _SCHEMA)


def _expected(topic: TopicStates, manifest: Manifest) -> DataFrame:
    """What the export should have: of bad records too, whose rows have no fields, but none whose key is no text."""
    from pyspark.sql import functions as f

    envelope: Any = manifest.envelope
    directory = Directory(manifest.directory, topic=manifest.topic, active=manifest.active, envelope=envelope)
    latest = topic.at(manifest.ends)
    if manifest.format in _OF_TEXT:
        text = f.try_validate_utf8(f.col("value").cast("string")).isNotNull() | f.col("value").isNull()
        latest = latest.withColumn("value", f.when(text, f.col("value")).otherwise(f.lit(bytearray())))
    named = f.try_validate_utf8(f.col("key").cast("string")).isNotNull()
    found = list_held(latest, directory, range(RANGES)).where(named).select("key", "digest", "partition", "offset")
    if manifest.export is not Export.CHANGES:
        return found.select("key", "digest")
    gone = latest.where(named).select("key", "partition", "offset").join(found.select("key"), "key", "left_anti")
    found = found.unionByName(gone.withColumn("digest", f.lit(bytearray(REMOVED))))
    first = [f.when(f.col("partition") == number, start) for number, start in manifest.starts.items()]
    return found.where(f.col("offset") >= f.coalesce(*first, f.lit(0))).select("key", "digest")


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
    expected = topic.values(manifest.ends, shown) if shown else {}
    found = _values(topic.spark, files, shown) if shown else {}
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
        yield f"{since} keys were written after the export, and compaction has taken what they had then"
    if forgotten:
        yield f"{forgotten} keys are gone from the topic, whose deletions it remembers no more: export anew to be sure"
    if suspects == _MOST:
        yield f"{_MOST} keys differ or more; no more were looked at"


def _retention(kafka: Kafka, topic: str) -> int:
    """For how many milliseconds the topic keeps tombstones at the least."""
    return int(kafka.topic_configs([topic]).get(topic, {}).get("delete.retention.ms", _DAY))


def _values(spark: SparkSession, files: _Files, keys: Collection[bytes]) -> dict[bytes, bytes]:
    """What the files have of some keys."""
    from pyspark.sql import functions as f

    rows = read(spark, files.path, files.manifest).select("_key", "_value")
    names = [key.decode(errors="replace") for key in keys]
    found = rows.where(f.coalesce("_key", f.lit("")).isin(names) & f.col("_value").isNotNull()).collect()
    return {(key or "").encode(): value.encode() if isinstance(value, str) else bytes(value) for key, value in found}
