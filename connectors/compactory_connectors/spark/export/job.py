"""A topic to files: rows of its newest records, of what has changed since another export, or of its history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka

from ..identifier import quoted
from ..stages import Stages
from ..topic.extent import Extent, capture
from ..topic.frame import in_tasks, latest, records
from ..topic.reading import Reading, newest, task
from ..topic.validity import with_validity
from .accumulation import tally_of
from .declared import columns_of, in_json
from .fields import chosen, sample, widened
from .files import flattened, write
from .folder import ExportFolder
from .increments import begins
from .json_types import settled, spelt
from .manifest import Counts, Export, Manifest, Place
from .rows import OPERATION, VALIDITY, Shape, rows
from .tally import Tally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ExportOptions", "as_written", "export"]

_LARGE: Final = 5_000_000  # offsets of a partition above which several tasks read it, where there are idle cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What is exported, and how.

    ``since`` is the folder of an export: only what has changed after it. ``columns`` are in Spark's words; else they
    are found in the values. ``wait`` are seconds for which an open transaction is waited for, ``task_memory`` bytes of
    keys and values that a task holds at a time.
    """

    format: Literal["parquet", "orc", "csv", "json"] = "parquet"
    since: str | None = None
    history: bool = False
    columns: str | None = None
    overwrite: bool = False
    wait: float = 60.0
    task_memory: int = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    tally: Tally
    rows: int
    deletes: int
    bad: int
    left_out: tuple[str, ...] = ()


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
        extent = begins(before, extent, kafka, directory, path=options.since or "")
    shape, casts = _shape(directory, extent, kafka, options, before)
    folder.begin(overwrite=options.overwrite)
    job = _Job(
        spark=spark, kafka=kafka, extent=extent, folder=folder, options=options, casts=casts, stages=stages or Stages()
    )
    shape, written = job.run(shape)
    extent.check(kafka)
    if before is not None:  # tombstones may have been forgotten while they were read
        begins(before, extent, kafka, directory, path=options.since or "")
    manifest = _manifest(directory, extent, shape, written, options, job)
    manifest = replace(manifest, captured_ms=int(captured * 1000), files=folder.files())
    folder.finish(manifest)
    return manifest


def _shape(
    directory: Directory[Any], extent: Extent, kafka: Kafka, options: ExportOptions, before: Manifest | None
) -> tuple[Shape, Mapping[str, str]]:
    """What rows look like at first, and the types that fields are cast to."""
    kind = Export.HISTORY if options.history else Export.FULL if before is None else Export.CHANGES
    shape = Shape(
        envelope=directory.envelope, active=directory.active, export=kind, partitions=1 + max(extent.ends, default=0)
    )
    if options.columns is not None or (before is not None and before.fixed):
        given = columns_of(options.columns) if options.columns is not None else dict(before.columns if before else {})
        if unfit := chosen(in_json(given))[1]:
            raise ConfigError(
                f"--columns: {', '.join(unfit)}: names that begin with _ are the record's own, and others"
                " have to differ in more than case"
            )
        return replace(shape, fields=in_json(given), fixed=True), given
    fields = sample(kafka, extent, directory)
    chosen(fields)  # refuses too many before an export that is there is given up
    return replace(shape, fields=widened(in_json(before.columns), fields) if before is not None else fields), {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Writes the files, again where it turns out on the way that they have to look otherwise."""

    spark: SparkSession
    kafka: Kafka
    extent: Extent
    folder: ExportFolder
    options: ExportOptions
    casts: Mapping[str, str]
    stages: Stages

    def run(self, shape: Shape) -> tuple[Shape, _Written]:
        """Write until all values fit their columns and no key is there twice.

        The first attempt takes what a sample says for true, and that each key is in the partition where it belongs; it
        finds out whether that was so, of all records. The second one knows.
        """
        apart = self._apart(shape)
        again = ""
        for _ in range(3):
            columns, left_out = chosen(shape.fields)
            made = replace(shape, fields=columns)
            self.stages.begin(f"exporting topic {self.extent.topic}{again}", self.extent.offsets)
            written = self._write(made, apart=apart)
            self.stages.end()
            tally = written.tally
            fields = shape.fields if shape.fixed else widened(shape.fields, tally.found)
            fits = shape.fixed or {n: settled(k) for n, k in fields.items() if n not in left_out} == {
                n: settled(k) for n, k in columns.items()
            }
            unique = not apart or (0 in tally.strays and not tally.spills)
            if fits and unique:
                return made, replace(written, left_out=left_out)
            shape, apart = replace(shape, fields=fields), apart and unique
            again = ", with other columns" if not fits else ", keys of several partitions together"
            self.folder.clear()
        raise CompactoryError(f"the values of topic {self.extent.topic!r} fit no columns: give --columns")

    def _apart(self, shape: Shape) -> bool:
        """Whether partitions are taken one by one, with nothing shuffled."""
        largest = max((span.end - span.start for span in self.extent.whole), default=0)
        cores = self.spark.sparkContext.defaultParallelism
        return shape.export is not Export.HISTORY and (largest <= _LARGE or len(self.extent.whole) >= cores)

    def _write(self, shape: Shape, *, apart: bool) -> _Written:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        tally = tally_of(self.spark)
        frame = self._frame(shape, tally, apart=apart)
        seen = Observation("export")
        deletes = f.col(OPERATION) == "delete" if shape.export is Export.CHANGES else f.lit(False)
        frame = _cast(frame, self.casts).observe(
            seen, f.count(f.lit(1)).alias("rows"), f.count("_error").alias("bad"), f.count_if(deletes).alias("deletes")
        )
        write(frame, self.folder.path, self.options.format)
        counted = seen.get
        found: Tally = tally.value
        if counted["rows"] != found.rows:
            raise CompactoryError(f"{counted['rows']} rows were written, {found.rows} were made: export again")
        return _Written(tally=found, rows=found.rows, deletes=counted["deletes"], bad=counted["bad"])

    def _frame(self, shape: Shape, tally: Any, *, apart: bool) -> DataFrame:
        make = rows(shape, tally.add)
        if shape.export is Export.HISTORY:
            versions = with_validity(records(self.spark, self.kafka, self.extent), *VALIDITY, time="timestamp_ms")
            return versions.mapInArrow(make, shape.spark)
        if not apart:
            found = latest(self.spark, self.kafka, self.extent, tombstones=True)
            return found.mapInArrow(make, shape.spark)
        reading = Reading(
            properties=self.kafka.properties(),
            topic=self.extent.topic,
            spans=self.extent.whole,
            memory=self.options.task_memory,
            on_spill=lambda: tally.add(Tally(spills=1)),
        )
        read = task(reading, newest)
        return in_tasks(self.spark, reading, lambda numbers: make(read(numbers)), shape.spark)


def as_written(records: DataFrame, manifest: Manifest) -> DataFrame:
    """The rows that an export of this manifest has for these records, one a key, as :func:`files.read` reads them."""
    shape = Shape(
        fields=in_json(manifest.columns),
        fixed=manifest.fixed,
        envelope=manifest.envelope,
        active=manifest.active,
        export=manifest.export,
    )
    made = records.mapInArrow(rows(shape, lambda _: None), shape.spark)
    return flattened(_cast(made, manifest.columns if manifest.fixed else {}), manifest.format)


def _cast(frame: DataFrame, casts: Mapping[str, str]) -> DataFrame:
    """Fields in the types that they were given; one that can't be cast is null, and an error of its row."""
    from pyspark.sql import functions as f

    for before, after in dict(zip(VALIDITY, ("_valid_from", "_valid_to"), strict=True)).items():
        if before in frame.columns:
            frame = frame.withColumn(before, f.timestamp_millis(before)).withColumnRenamed(before, after)
    for name, kind in casts.items():
        column = f.col(quoted(name))
        cast = column.try_cast(kind)
        unfit = f.when(column.isNotNull() & cast.isNull(), f.lit(f"field {name!r} is no {kind}"))
        frame = frame.withColumns({"_error": f.coalesce("_error", unfit), name: cast})
    return frame


def _manifest(
    directory: Directory[Any], extent: Extent, shape: Shape, written: _Written, options: ExportOptions, job: _Job
) -> Manifest:
    tally = written.tally
    columns = {name: job.casts.get(name) or spelt(settled(kind)) for name, kind in shape.fields.items()}
    return Manifest(
        export=shape.export,
        directory=directory.name,
        topic=extent.topic,
        topic_id=extent.topic_id,
        key=directory.key,
        active=directory.active,
        envelope=directory.envelope,
        captured_ms=0,
        starts=extent.starts,
        ends=extent.ends,
        format=options.format,
        columns=columns,
        fixed=shape.fixed,
        left_out=written.left_out,
        counts=Counts(
            rows=written.rows,
            deletes=written.deletes,
            bad=written.bad,
            tombstones=tally.tombstones,
            inactive=tally.inactive,
            nameless=tally.nameless,
        ),
        bad_records=tuple(Place(**place._asdict()) for place in tally.places),
        digest=tally.digest,
    )
