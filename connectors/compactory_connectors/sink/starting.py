"""Where a partition goes on: the database says it, and it is checked against the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from compactory.kafka.client import Kafka
from compactory.records import Partition

from .offsets import Offsets
from .record import SinkStopped

__all__ = ["Locator", "Start"]

Start: TypeAlias = Literal["earliest", "latest"]


@dataclass(slots=True)
class Locator:
    """Finds the next offsets of partitions. Owned by one thread.

    Raises SinkStopped where the log does not have the records that come next, psycopg.Error, Unreachable.
    """

    kafka: Kafka
    offsets: Offsets
    sink: str
    start: Start
    committed: Callable[[Sequence[Partition]], Mapping[Partition, int]]
    """Counts for partitions that no sink of this name ever used."""
    _topic_ids: dict[str, str | None] = field(default_factory=dict)

    def locate(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The next offset of each that is there."""
        found = self.kafka.topics({part.topic for part in partitions})
        ids = {name: topic.topic_id for name, topic in found.items()}
        starts = self.kafka.log_starts(partitions)
        ends = self.kafka.high_watermarks(partitions)
        partitions = [part for part in partitions if part in starts and part in ends]
        known = self.offsets.known(partitions)
        new = [part for part, (offset, _) in known.items() if offset is None]
        if new:
            first = starts if self.start == "earliest" else ends
            chosen = {**{part: first[part] for part in new}, **self.committed(new)}
            for part in new:
                self.offsets.begin(part, chosen[part], ids.get(part.topic))
            known |= self.offsets.known(new)
        self._topic_ids.update(ids)
        located = {part: offset for part, (offset, _) in known.items() if offset is not None}
        problems = [
            problem
            for part, (offset, topic_id) in known.items()
            for problem in self._problems(part, offset or 0, topic_id, ids.get(part.topic), starts[part], ends[part])
        ]
        if problems:
            raise SinkStopped("\n".join(problems))
        return located

    def check_topics(self, topics: Sequence[str]) -> bool:
        """Whether these topics are still those that were located."""
        found = self.kafka.topics(topics)
        return all(found[name].topic_id == self._topic_ids.get(name) for name in topics if name in found)

    def _problems(
        self, part: Partition, offset: int, topic_id: str | None, now: str | None, start: int, end: int
    ) -> Iterator[str]:
        where = f"sink {self.sink!r}: partition {part.partition} of topic {part.topic!r}"
        remedy = f"compactory sink offsets set {self.sink} {part.topic} {part.partition}"
        if None not in {topic_id, now} and topic_id != now:
            yield (
                f"{where}: the topic was deleted and created again ({topic_id} is {now} now), so offset {offset} means"
                f" another record; to apply what it has now: {remedy} earliest"
            )
        elif offset < start:
            yield (
                f"{where}: records {offset} to {start - 1} were deleted before they were applied; raise retention.ms,"
                f" fill in what is lost from elsewhere, then go on: {remedy} earliest"
            )
        elif offset > end:
            yield (
                f"{where}: the log ends at {end}, before the next offset {offset}: it was cut off; check what is"
                f" applied twice or lost, then go on: {remedy} {end}"
            )
