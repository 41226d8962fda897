"""A topic to files: rows of its newest records, of what has changed since another export, or of its history."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from pyspark.sql import DataFrame, SparkSession

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka

from ..digests import digest_of
from ..record_batch import in_arrow
from ..stages import Stages
from ..topic.extent import Extent, capture
from ..topic.frame import in_tasks, latest, records, with_validity
from ..topic.reading import Reading, newest
from ..typed.fields import chosen, columns_of, given, in_json, sample, widened
from ..typed.typed_rows import VALIDITY
from .folder import ExportFolder
from .increments import begins
from .manifest import Counts, Export, Manifest
from .rows import Shape, Tally, rows, tally_of

__all__ = ["ExportOptions", "export"]

_LARGE: Final = 5_000_000  # offsets of a partition above which several tasks read it, where there are idle cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of an export.

    ``since`` is the folder of an export: only what has changed after it. ``columns`` are in Spark's words; else they
    are found in the values. ``wait`` are seconds for which an open transaction is waited for, ``task_memory`` bytes of
    keys and values that a task holds at a time.
    """

    format: Literal["parquet", "orc", "csv", "json"] = "parquet"
    since: str | Path | None = None
    history: bool = False
    columns: str | None = None
    overwrite: bool = False
    wait: float = 60.0
    task_memory: int = 512 << 20


def export(
    spark: SparkSession,
    kafka: Kafka,
    directory: Directory[Any],
    path: str,
    options: ExportOptions,
    stages: Stages | None = None,
) -> Manifest:
    """Export a directory's topic to the folder ``path``; the manifest is written last.

    Raises ConfigError for what can't be exported as it was asked for, Unreachable where Kafka or the file system is not
    reached or a transaction stays open, TopicChanged where the topic did not stay the same; then there is no export.
    """
    if options.since is not None and options.history:
        raise ConfigError("--since and --history exclude each other: a history has all that the topic has")
    folder = ExportFolder(spark, path)
    since = ExportFolder(spark, options.since) if options.since is not None else None
    if since is not None and since.place == folder.place:
        raise ConfigError(f"--since and --to are both {path}: an increment needs its base export; give another path")
    before = since.manifest() if since is not None else None
    captured = time.time()
    extent = capture(kafka, directory.topic, wait=options.wait)
    if before is not None:
        extent = begins(before, extent, kafka, directory, path=str(options.since))
    shape = _shape(directory, extent, kafka, options, before)
    folder.begin(overwrite=options.overwrite)
    job = _Job(spark=spark, kafka=kafka, extent=extent, folder=folder, options=options, stages=stages or Stages())
    shape, left_out, tally = job.run(shape)
    extent.check(kafka)
    if before is not None:  # tombstones may have been forgotten while they were read
        begins(before, extent, kafka, directory, path=str(options.since))
    manifest = Manifest(
        export=shape.export,
        directory=directory.name,
        topic=extent.topic,
        topic_id=extent.topic_id,
        key=directory.key,
        active=directory.active,
        envelope=directory.envelope,
        captured_ms=int(captured * 1000),
        starts=extent.starts,
        ends=extent.ends,
        format=options.format,
        columns=shape.columns,
        fixed=shape.given is not None,
        left_out=left_out,
        counts=Counts(**{"rows": 0, **tally.counts}),
        bad_records=tuple(tally.places),
        digest=digest_of(tally.sums),
        files=folder.files(),
    )
    folder.finish(manifest)
    return manifest


def _shape(
    directory: Directory[Any], extent: Extent, kafka: Kafka, options: ExportOptions, before: Manifest | None
) -> Shape:
    """The shape of rows before a value has been read."""
    kind = Export.HISTORY if options.history else Export.FULL if before is None else Export.CHANGES
    shape = Shape(
        envelope=directory.envelope, active=directory.active, export=kind, partitions=1 + max(extent.ends, default=0)
    )
    columns = given(options.columns) if options.columns is not None else None
    if columns is None and before is not None and before.fixed:
        columns = columns_of(before.columns)
    if columns is not None:
        if unfit := chosen(in_json(columns.fields))[1]:
            raise ConfigError(
                f"--columns: {', '.join(unfit)}: names that begin with _ are the record's own, and others"
                " have to differ in more than case"
            )
        return replace(shape, fields=in_json(columns.fields), given=columns)
    found = sample(kafka, extent, directory)
    chosen(found)  # refuses too many before an export that is there is given up
    return replace(shape, fields=widened(in_json(columns_of(before.columns).fields), found) if before else found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Writes the files, again where it turns out on the way that they have to look otherwise."""

    spark: SparkSession
    kafka: Kafka
    extent: Extent
    folder: ExportFolder
    options: ExportOptions
    stages: Stages

    def run(self, shape: Shape) -> tuple[Shape, tuple[str, ...], Tally]:
        """Write until all values fit their columns and no key is there twice; says which fields have no column.

        The first attempt takes what a sample says for true, and that each key is in the partition where it belongs; it
        finds out whether that was so, of all records. The second one knows.
        """
        apart = self._apart(shape)
        again = ""
        for _ in range(3):
            made = replace(shape, fields=chosen(shape.fields)[0])
            self.stages.begin(f"exporting topic {self.extent.topic}{again}", self.extent.offsets)
            counting = tally_of(self.spark)
            self.folder.write(self._frame(made, counting, apart=apart), self.options.format)
            tally = counting.value
            self.stages.end()
            wider = shape if shape.given is not None else replace(shape, fields=widened(shape.fields, tally.found))
            columns, left_out = chosen(wider.fields)
            fits = replace(wider, fields=columns).columns == made.columns
            unique = not apart or (0 in tally.strays and not tally.spills)
            if fits and unique:
                return made, left_out, tally
            shape, apart = wider, apart and unique
            again = ", with other columns" if not fits else ", keys of several partitions together"
            self.folder.clear()
        raise CompactoryError(f"the values of topic {self.extent.topic!r} fit no columns: give --columns")

    def _apart(self, shape: Shape) -> bool:
        """Whether partitions are taken one by one, with nothing shuffled."""
        largest = max((span.end - span.start for span in self.extent.whole), default=0)
        cores = self.spark.sparkContext.defaultParallelism
        return shape.export is not Export.HISTORY and (largest <= _LARGE or len(self.extent.whole) >= cores)

    def _frame(self, shape: Shape, tally: Any, *, apart: bool) -> DataFrame:
        make = rows(shape, tally.add)
        if shape.export is Export.HISTORY:
            versions = with_validity(records(self.spark, self.kafka, self.extent), *VALIDITY, time="timestamp_ms")
            return in_arrow(versions, make, shape.schema)
        if not apart:
            found = latest(self.spark, self.kafka, self.extent, tombstones=True)
            return in_arrow(found, make, shape.schema)
        reading = Reading(
            properties=self.kafka.properties(),
            topic=self.extent.topic,
            spans=self.extent.whole,
            memory=self.options.task_memory,
            on_spill=lambda: tally.add(Tally(spills=1)),
        )
        return in_tasks(self.spark, reading, lambda batches: make(newest(batches, reading)), shape.schema)
