"""The reader of ``spark.readStream``: every committed record once, from the offsets of Spark's checkpoint on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from compactory.kafka.client import Kafka
from compactory.records import Topic

from ..topic.extent import Extent, by_number, described_topic
from ..topic.reading import read_span, tuned
from .batch import Piece, pieces_of, reading_of, record_rows, row_shape
from .options import ReadOptions
from .position import check_position, offsets_at

__all__ = ["StreamReader"]

_REMEDY: Final = (
    "the stream can't go on without missing records: start it with a new checkpointLocation, and see that its sink"
    " takes all records again"
)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads every committed record as a row. An offset is ``{"topic_id": …, "offsets": {"0": 42}}``: next offsets.

    A micro-batch ends at the last stable offsets, so an open transaction holds its partition back. New partitions are
    read from their first offset. Raises ConfigError where the topic was created again, or where positions are gone.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = row_shape(options, schema, changes=True)
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Where a stream without a checkpoint begins."""
        with closing(Kafka(self._options.kafka)) as kafka:
            topic = described_topic(kafka, self._options.directory.topic)
            starting = self._options.starting
            if starting == "earliest":
                found = by_number(kafka.log_starts(topic.all()))
            elif starting == "latest":
                found = _stable(kafka, topic)
            else:
                found = offsets_at(kafka, topic, starting, "startingOffsets")
            return _offset(topic, found)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends."""
        with closing(Kafka(self._options.kafka)) as kafka:
            topic = self._checked(kafka, start)
            begins = self._begins(kafka, topic, start)
            ends = _stable(kafka, topic) if self._target is None else self._target
            ends = {part: max(at, ends.get(part, at)) for part, at in begins.items()}
            if isinstance(limit, ReadMaxRows):
                ends = _limited(begins, ends, limit.max_rows)
            return _offset(topic, ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How many offsets a micro-batch has at most."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the topic ends now: a query of what is available reads up to there."""
        with closing(Kafka(self._options.kafka)) as kafka:
            self._target = _stable(kafka, described_topic(kafka, self._options.directory.topic))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The pieces of a micro-batch, the same each time that Spark asks."""
        with closing(Kafka(self._options.kafka)) as kafka:
            topic = self._checked(kafka, start)
            ends = _numbers(end)
            starts = {part: at for part, at in self._begins(kafka, topic, start).items() if part in ends}
            extent = Extent(topic=topic.name, topic_id=topic.topic_id, starts=starts, ends=ends)
            return [Piece([span]) for span in pieces_of(extent, 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece, in log order. Raises CompactoryError, Unreachable."""
        assert isinstance(partition, Piece)
        with tuned():
            for span in partition.spans:
                records = read_span(reading_of(self._options, self._shape), span)
                yield from record_rows(records, self._options, self._shape)

    def _checked(self, kafka: Kafka, start: Mapping[str, Any]) -> Topic:
        topic = described_topic(kafka, self._options.directory.topic)
        check_position(kafka, topic, start.get("topic_id"), _numbers(start), _REMEDY)
        return topic

    def _begins(self, kafka: Kafka, topic: Topic, start: Mapping[str, Any]) -> dict[int, int]:
        """The next offset of each partition; of one that came since its first."""
        known = _numbers(start)
        new = [part for part in topic.all() if part.partition not in known]
        return known | by_number(kafka.log_starts(new))


def _stable(kafka: Kafka, topic: Topic) -> dict[int, int]:
    return by_number(kafka.stable_offsets(topic.all()))


def _offset(topic: Topic, offsets: Mapping[int, int]) -> dict[str, Any]:
    return {"topic_id": topic.topic_id, "offsets": {str(part): at for part, at in sorted(offsets.items())}}


def _numbers(offset: Mapping[str, Any]) -> dict[int, int]:
    return {int(part): at for part, at in offset["offsets"].items()}


def _limited(begins: Mapping[int, int], ends: Mapping[int, int], most: int) -> dict[int, int]:
    """So many offsets at most, of each partition its share, and one at least in all."""
    waiting = {part: ends[part] - at for part, at in begins.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(ends)
    found = {part: begins[part] + count * most // total for part, count in waiting.items()}
    left = most - sum(found[part] - begins[part] for part in found)
    for part in sorted(waiting, key=lambda part: -waiting[part])[:left]:
        found[part] += found[part] < ends[part]
    return found
