"""The reader of ``spark.readStream``: each committed record once, from the offsets of Spark's checkpoint on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
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

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition, Topic

from ..topic.extent import Extent, by_number, described_topic
from ..topic.reading import read_span, tuned
from .batch import Piece, pieces_of, reading_of, record_rows
from .options import ReadOptions
from .position import check_position, offsets_at, topics_of
from .row_shape import RowShape

__all__ = ["StreamReader"]

_REMEDY: Final = (
    "the stream can't go on without missing records: start it with a new checkpointLocation, and see that its sink"
    " takes all records again; or set option failOnDataLoss to false"
)

_log = logging.getLogger("compactory.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Positions:
    """The next offsets of a topic, and the leader epoch of the log when they were noted.

    By the epoch a broker knows that the log was cut off before an offset, however long it is now (KIP-320).
    """

    topic_id: str | None
    offsets: Mapping[int, int]
    epochs: Mapping[int, int]

    def as_json(self) -> dict[str, Any]:
        offsets = {str(number): offset for number, offset in sorted(self.offsets.items())}
        return {"id": self.topic_id, "offsets": offsets, "epochs": {str(part): at for part, at in self.epochs.items()}}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> _Positions:
        offsets, epochs = (
            {int(number): value for number, value in document[name].items()} for name in ("offsets", "epochs")
        )
        return cls(topic_id=document["id"], offsets=offsets, epochs=epochs)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each committed record as a row.

    An offset of Spark is ``{TOPIC: {"id": …, "offsets": {"0": 42}, "epochs": {"0": 3}}}``, with next offsets. A
    micro-batch ends at the last stable offsets, so an open transaction delays its partition. New partitions, and new
    topics of a pattern, are read from their first offset. Raises ConfigError where a topic was created again, or where
    records at its positions are gone.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = RowShape.of(options, schema, changes=True)
        self._target: dict[str, _Positions] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        with closing(Kafka(self._options.kafka)) as kafka:
            return {
                topic.name: self._initial(kafka, topic).as_json()
                for topic in self._topics(kafka)
            }  # fmt: skip

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with closing(Kafka(self._options.kafka)) as kafka:
            starts = self._starts(kafka, start)
            ends = dict(self._target) if self._target is not None else self._ends(kafka)
        for name, position in starts.items():
            end = ends.get(name, position)
            offsets = {part: max(offset, end.offsets.get(part, offset)) for part, offset in position.offsets.items()}
            ends[name] = replace(end, offsets=offsets)
        if isinstance(limit, ReadMaxRows):
            ends = _limited(starts, ends, limit.max_rows)
        return {name: ends[name].as_json() for name in starts}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the topics end now: a query of what is available reads up to there."""
        with closing(Kafka(self._options.kafka)) as kafka:
            self._target = self._ends(kafka)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the pieces of a micro-batch, the same each time that Spark asks."""
        pieces: list[Piece] = []
        with closing(Kafka(self._options.kafka)) as kafka:
            for name, begin in self._starts(kafka, start).items():
                if name in end:
                    pieces += _pieces(kafka, name, begin, _Positions.of_json(end[name]).offsets)
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a piece, in log order. Raises CompactoryError, Unreachable."""
        assert isinstance(partition, Piece)
        with tuned():
            reading = reading_of(self._options, partition.topic)
            for span in partition.spans:
                yield from record_rows(read_span(reading, span), self._shape, partition.topic)

    def _topics(self, kafka: Kafka) -> list[Topic]:
        return [described_topic(kafka, name) for name in topics_of(kafka, self._options)]

    def _initial(self, kafka: Kafka, topic: Topic) -> _Positions:
        starting = self._options.starting
        if starting == "latest":
            return _stable(kafka, topic)
        if starting == "earliest":
            return _earliest(kafka, topic)
        offsets = offsets_at(kafka, topic, starting, "startingOffsets")
        return _Positions(topic_id=topic.topic_id, offsets=offsets, epochs={})

    def _ends(self, kafka: Kafka) -> dict[str, _Positions]:
        return {topic.name: _stable(kafka, topic) for topic in self._topics(kafka)}

    def _starts(self, kafka: Kafka, start: Mapping[str, Any]) -> dict[str, _Positions]:
        """Return the next offsets of each partition; of new partitions and topics the first ones."""
        starts: dict[str, _Positions] = {}
        for topic in self._topics(kafka):
            first = _earliest(kafka, topic)
            if topic.name in start:
                position = self._checked(kafka, topic, _Positions.of_json(start[topic.name]), first)
                first = replace(position, offsets={**first.offsets, **position.offsets})
            starts[topic.name] = first
        if missing := sorted(set(start) - set(starts)):
            _log.warning("topics %s are gone: their positions are forgotten", ", ".join(missing))
        return starts

    def _checked(self, kafka: Kafka, topic: Topic, position: _Positions, first: _Positions) -> _Positions:
        """Return the position if its records are there. Raises ConfigError unless data may be lost."""
        try:
            check_position(kafka, topic, position.topic_id, position.offsets, _REMEDY)
        except ConfigError as error:
            if self._options.fails_on_loss:
                raise
            _log.warning("%s", error)
            if position.topic_id != topic.topic_id:
                return first
            ends = by_number(kafka.high_watermarks(topic.all()))
            offsets = {
                part: min(max(position.offsets.get(part, offset), offset), ends[part])
                for part, offset in first.offsets.items()
            }
            return replace(position, offsets=offsets, epochs={})
        return position


def _earliest(kafka: Kafka, topic: Topic) -> _Positions:
    return _Positions(topic_id=topic.topic_id, offsets=by_number(kafka.log_starts(topic.all())), epochs={})


def _stable(kafka: Kafka, topic: Topic) -> _Positions:
    ends = {part.partition: end for part, end in kafka.stable_ends(topic.all()).items()}
    epochs = {number: epoch for number, (_offset, epoch) in ends.items() if epoch is not None}
    return _Positions(
        topic_id=topic.topic_id, offsets={number: offset for number, (offset, _) in ends.items()}, epochs=epochs
    )


def _pieces(kafka: Kafka, name: str, begin: _Positions, ends: Mapping[int, int]) -> list[Piece]:
    """Return the pieces of a topic. The first of a partition begins with the epoch that the checkpoint has.

    A broker does not know the epoch of records that it has deleted, and before the log's start there is none to check.
    """
    starts = {part: offset for part, offset in begin.offsets.items() if part in ends}
    extent = Extent(topic=name, topic_id=begin.topic_id, starts=starts, ends=ends)
    log_starts = by_number(kafka.log_starts(Partition(name, part) for part in starts))
    pieces: list[Piece] = []
    for span in pieces_of(extent, 1):
        is_first = span.start == starts[span.partition] > log_starts[span.partition]
        epoch = begin.epochs.get(span.partition, -1) if is_first else -1
        pieces.append(Piece(name, [replace(span, epoch=epoch)]))
    return pieces


def _limited(starts: Mapping[str, _Positions], ends: Mapping[str, _Positions], limit: int) -> dict[str, _Positions]:
    """Return ends that have ``limit`` offsets at most: of each partition its share, and one at least in all."""
    pending = {
        (name, part): ends[name].offsets[part] - offset
        for name, position in starts.items()
        for part, offset in position.offsets.items()
    }
    total = sum(pending.values())
    if total <= limit:
        return dict(ends)
    shares = {place: count * limit // total for place, count in pending.items()}
    remainder = limit - sum(shares.values())
    for place in sorted(pending, key=lambda place: -pending[place])[:remainder]:
        shares[place] = min(shares[place] + 1, pending[place])
    return {
        name: replace(
            ends[name], offsets={part: offset + shares[name, part] for part, offset in position.offsets.items()}
        )
        for name, position in starts.items()
    }
