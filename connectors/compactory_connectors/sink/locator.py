"""The start position of a partition: the offset that the database has, checked against the log of the topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Located

from .record import SinkStopped
from .statements import OffsetRow, SinkTable

__all__ = ["Locator", "Start"]

Start: TypeAlias = Literal["earliest", "latest"]


@dataclass(slots=True)
class Locator:
    """Looks up the start positions of partitions. Owned by one thread.

    Raises SinkStopped if the log lacks the next records, psycopg.Error, Unreachable.
    """

    kafka: Kafka
    table: SinkTable
    sink: str
    start: Start
    committed: Callable[[Sequence[Partition]], Mapping[Partition, int]]
    """Returns committed offsets of the group, for partitions that no sink of this name has used."""
    _topic_ids: dict[str, str | None] = field(default_factory=dict)

    def locate(self, partitions: Sequence[Partition]) -> dict[Partition, Located]:
        """Return the start position of each partition that exists."""
        topics = self.kafka.topics({part.topic for part in partitions})
        ids = {name: topic.topic_id for name, topic in topics.items()}
        starts = self.kafka.log_starts(partitions)
        ends = self.kafka.high_watermarks(partitions)
        partitions = [part for part in partitions if part in starts and part in ends]
        rows = self.table.rows(partitions)
        new = [part for part, row in rows.items() if row.offset is None]
        if new:
            first = starts if self.start == "earliest" else ends
            chosen = {**{part: first[part] for part in new}, **self.committed(new)}
            for part in new:
                self.table.begin(part, chosen[part], ids.get(part.topic))
            rows |= self.table.rows(new)
        self._topic_ids.update(ids)
        problems = [
            problem
            for part, row in rows.items()
            for problem in self._problems(part, row, ids.get(part.topic), starts[part], ends[part])
        ]
        if problems:
            raise SinkStopped("\n".join(problems))
        return {part: at for part, row in rows.items() if (at := row.located(starts[part])) is not None}

    def check_topics(self, topics: Sequence[str]) -> bool:
        """Return True if no topic was deleted and created again since its positions were looked up."""
        present = self.kafka.topics(topics)
        return all(topic.topic_id == self._topic_ids.get(name) for name, topic in present.items())

    def _problems(self, part: Partition, row: OffsetRow, current_id: str | None, start: int, end: int) -> Iterator[str]:
        offset, topic_id = row.offset or 0, row.topic_id
        where = f"sink {self.sink!r}: partition {part.partition} of topic {part.topic!r}"
        remedy = f"compactory sink offsets set {self.sink} {part.topic} {part.partition}"
        if None not in {topic_id, current_id} and topic_id != current_id:
            yield (
                f"{where}: the topic was deleted and created again ({topic_id} is {current_id} now), so offset {offset}"
                f" means another record; to apply the records that it has now: {remedy} earliest"
            )
        elif offset < start:
            yield (
                f"{where}: records {offset} to {start - 1} were deleted before they were applied; raise retention.ms,"
                f" restore the lost records from elsewhere, then continue: {remedy} earliest"
            )
        elif offset > end:
            yield (
                f"{where}: the log ends at {end}, before the next offset {offset}: it was truncated; check which"
                f" records are applied twice or lost, then continue: {remedy} {end}"
            )
