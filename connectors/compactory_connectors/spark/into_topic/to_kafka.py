"""A load into a topic: the records that a source or a writer would have sent, those that differ, in one transaction.

Readers (read committed, as stores are) see all of it or none; a load that one transaction can't bear takes several.
Executors make the records and compare them; the driver sends, because a Kafka transaction belongs to one producer, and
because the transactional id is what keeps everybody else out. Decision 0025 has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from compactory.directory import Directory
from compactory.errors import CompactoryError, ConfigError
from compactory.kafka.client import Kafka
from compactory.write.destination import Destination
from compactory_connectors.kafka.partitioner import is_murmur2
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.offsets.topics import ensure_topics

from ..record_batch import in_arrow
from ..target import Differences, Mode, Received, TargetColumn, Written
from ..topic.extent import Extent
from ..topic.frame import capture, copies, latest
from .entry_records import EntryRecords
from .record_maker import make_records
from .sending import Found, Sending
from .table_columns import described
from .table_records import TableRecords
from .topic_changes import CHANGES, COPIES, Judge, Tally
from .topic_claim import TopicClaim

__all__ = ["KafkaTarget"]

log = structlog.get_logger("compactory.spark")

_WAIT: Final = 30.0
"""Seconds to wait for open transactions of others."""
_QUEUE: Final = 256 << 10
"""KiB of records that may wait in the driver for Kafka."""


class KafkaTarget:
    """The topic of a directory; see :class:`target.Target`.

    With a ``connector`` its source's bytes, else a DirectoryWriter's. ``types`` and ``key`` are those of the load's
    rules: they count where there is no connector, or its database does not answer. A ``dry_run`` fences nobody.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        kafka: Kafka,
        directory: Directory[Any],
        connector: ConnectorConfig | None,
        types: Mapping[str, str],
        key: Sequence[str] = (),
        dry_run: bool = False,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._directory = directory
        self._connector = connector
        self._types = types
        self._key = key
        self._dry = dry_run
        self._offset_key: bytes | None = None
        self._found: Found | None = None
        self._properties: dict[str, Any] = {}
        self._kept = ExitStack()

    @property
    def label(self) -> str:
        """``topic NAME``."""
        return f"topic {self._directory.topic}"

    @property
    def columns(self) -> Sequence[TargetColumn]:
        """The columns of its records: a load fills all of them. :meth:`write` makes sure again whose the topic is.

        Raises ConfigError, LeaseLost where the topic is a source's, Unreachable.
        """
        columns = self._maker.columns
        self._claim.refuse_owned()
        return columns

    @property
    def key(self) -> Sequence[str]:
        """The columns that decide the record's key."""
        return self._maker.key

    def repeated(self) -> None:
        """Nothing: a topic keeps no ids of loads."""

    def receive(self, rows: DataFrame, mode: Mode) -> Received | None:  # noqa: ARG002  # those of Target
        """Nothing: what a topic would have of them is found by comparing."""
        return None

    def compare(self, rows: DataFrame, mode: Mode, spared: DataFrame | None = None) -> Differences:
        """See :class:`target.Target`. Unless it is a dry run, nobody else may write the topic from now on.

        Raises ConfigError, LeaseLost, Unreachable, TopicChanged, and CompactoryError for rows of which no record can be
        made, or several the same.
        """
        lacking = [name for name in self._maker.needs if name not in rows.columns]
        if lacking:
            raise ConfigError(
                f"{self.label}: a record is written whole, and the rows lack {', '.join(lacking)}; map them"
            )
        if not self._dry:
            self._prepare()
            self._claim.take()
        extent = self._extent()
        spared = spared if mode is Mode.REPLACE else None
        changes = self._changes(rows.select(*self._maker.needs), mode, extent, spared).persist()
        self._kept.callback(changes.unpersist)
        tally = Tally()
        for row in changes.where("tally IS NOT NULL").select("tally").collect():
            tally.add(Tally.loads(row[0]))
        if extent.topic_id is not None:
            extent.check(self._kafka)
        self._refuse(tally, mode)
        self._found = Found(changes=changes, extent=extent, tally=tally)
        if self._found.transactions > 1:
            log.warning(
                "the load takes several transactions: readers see each of them whole, and the load bit by bit",
                transactions=self._found.transactions,
                records=self._found.outgoing,
            )
        return Differences(counts=tally.changes(), present=tally.present, samples=tally.sampled())

    def write(self) -> Written:
        """Send what differs in one transaction: readers see all of it or, where it fails, nothing.

        18 M records and more go in several transactions, one by one. Whether the last one was written is not known
        after an Unreachable while it was committed; the next load finds out.
        Raises LeaseLost where somebody took over, TopicChanged where somebody wrote a key of the load since it was
        compared, ConfigError, Unreachable, CompactoryError. The same load may then be done again.
        """
        found = self._found
        assert found is not None, "compare() comes first"
        assert not self._dry, "a dry run does not write"
        if found.outgoing:
            Sending(self._spark, self._kafka, self._claim, found).run(self._properties)
        return Written(counts=found.tally.changes())

    def close(self) -> None:
        """See :class:`target.Target`."""
        self._found = None
        with self._kept:
            self._claim.close()

    @cached_property
    def _maker(self) -> TableRecords | EntryRecords:
        if self._connector is None:
            return EntryRecords.of(self._directory, self._types, self._key)
        table, self._offset_key = described(self._connector, self._directory.topic, self._types)
        return TableRecords.of(self._connector, table, dry=self._dry)

    @cached_property
    def _claim(self) -> TopicClaim:
        self._maker  # noqa: B018 - knows the offset's key
        return TopicClaim(self._kafka, self._directory.topic, self._connector, self._offset_key)

    def _prepare(self) -> None:
        """See to it that the topic is there, compacted, and may be written."""
        topic = self._directory.topic
        if self._connector is not None:
            rules = self._connector.topics
            for warning in ensure_topics(self._kafka, {topic: rules.of(topic)}, create=rules.create):
                log.warning(warning)
        largest = Destination(self._kafka, topic).prepare(10.0, create=False)
        self._properties = {"queue.buffering.max.kbytes": _QUEUE, **largest}

    def _extent(self) -> Extent:
        topic = self._directory.topic
        if self._dry and self._connector is not None and not self._kafka.topics([topic]):
            return Extent(topic=topic, topic_id=None, starts={}, ends={})
        return capture(self._kafka, topic, wait=_WAIT)

    def _changes(self, rows: DataFrame, mode: Mode, extent: Extent, spared: DataFrame | None) -> DataFrame:
        """Packs of what has to be sent, and tallies. Sort-merge: equal keys have to follow each other."""
        made = make_records(self._maker, rows).withColumn("made", f.lit(True))
        there = self._sparing(self._there(extent), spared)
        joined = made.hint("merge").join(there, "key", "full_outer")
        judge = Judge(directory=self._directory, mode=mode, partitions=self._homes(extent))
        wanted = "key made value headers problem before copies spared".split()  # noqa: SIM905
        return in_arrow(joined.select(*wanted), judge.__call__, CHANGES)

    def _there(self, extent: Extent) -> DataFrame:
        """The topic's record of each key, with other places where the key lives; a topic of one partition has none."""
        if self._homes(extent) in {None, 0, 1}:
            found = latest(self._spark, self._kafka, extent).selectExpr(
                "key", "value", f"CAST(NULL AS {COPIES}) AS copies"
            )
        else:
            found = copies(self._spark, self._kafka, extent)
        return found.withColumnRenamed("value", "before")

    def _homes(self, extent: Extent) -> int | None:
        """How many partitions keys are spread over; None: it is not known how."""
        return len(extent.ends) if is_murmur2(self._kafka.properties().get("partitioner")) else None

    def _sparing(self, there: DataFrame, spared: DataFrame | None) -> DataFrame:
        """With a column that says of which keys a rejected row is: such a key is not gone."""
        if spared is None:
            return there.withColumn("spared", f.lit(False))
        if not self._maker.tells_keys:
            raise CompactoryError(
                f"{self.label}: rows were rejected, and what their keys are hangs on more than the key's columns;"
                " nothing may be removed then: repair the rows, or load with --mode upsert"
            )
        keys = make_records(self._maker, spared).select("key").dropna().distinct()
        return there.join(keys.withColumn("spared", f.lit(True)), "key", "left")

    def _refuse(self, tally: Tally, mode: Mode) -> None:
        if tally.collisions:
            raise CompactoryError(
                f"{self.label}: {tally.collisions:,} rows have a record key that another row has as well:"
                f" {', '.join(tally.twice)}; give the rules a key that is unique"
            )
        if not tally.problems:
            return
        reasons = "; ".join(dict.fromkeys(tally.reasons))
        tolerant = self._connector is not None and self._connector.errors.skip
        if not tolerant or mode is Mode.REPLACE:
            raise CompactoryError(f"{self.label}: no record can be made of {tally.problems:,} rows: {reasons}")
        log.warning("rows left out, as errors.tolerance=all says", rows=tally.problems, reasons=reasons)
