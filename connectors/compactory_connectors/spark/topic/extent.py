"""The part of a topic that a job reads: offsets that are captured once, so that all tasks and attempts agree."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from compactory.errors import CompactoryError, ConfigError, Unreachable
from compactory.kafka.client import Kafka
from compactory.records import Partition, Topic

__all__ = ["Extent", "Span", "TopicChanged", "by_number", "capture", "described_topic"]

_LOOK_EVERY = 0.2  # seconds between two looks at a transaction that is waited for


class TopicChanged(CompactoryError):
    """The topic is not the one any more that was to be read: created again, cut off, or records of it are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of a partition: ``start`` is the first, ``end`` the one after the last."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A topic between its log starts and high watermarks of one moment, by number of partition.

    Below the ends everything is decided: no transaction is open there.
    """

    topic: str
    topic_id: str | None
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def offsets(self) -> int:
        """How many there are; no more records than that."""
        return sum(max(0, end - self.starts[number]) for number, end in self.ends.items())

    @property
    def whole(self) -> list[Span]:
        """A span for each partition that has offsets."""
        return [
            Span(partition=number, start=self.starts[number], end=end)
            for number, end in sorted(self.ends.items())
            if self.starts[number] < end
        ]

    def tail(self, offsets: int) -> list[Span]:
        """The last so many offsets of the largest partition; no span where the topic is empty."""
        largest = sorted(self.whole, key=lambda span: span.start - span.end)[:1]
        return [replace(span, start=max(span.start, span.end - offsets)) for span in largest]

    def behind(self, positions: Mapping[int, int]) -> int:
        """The number of offsets between these next offsets and the ends."""
        return sum(max(0, end - positions.get(number, 0)) for number, end in self.ends.items())

    def spans(self, tasks: int, least: int = 100_000) -> list[Span]:
        """Pieces for about as many tasks, none of which is smaller than ``least`` offsets unless a partition is."""
        size = max(least, -(-self.offsets // max(1, tasks)))
        found: list[Span] = []
        for number, end in sorted(self.ends.items()):
            start = min(self.starts[number], end)
            pieces = max(1, round((end - start) / size))
            cuts = [start + (end - start) * piece // pieces for piece in range(pieces + 1)]
            found += [Span(partition=number, start=low, end=high) for low, high in pairwise(cuts) if low < high]
        return found

    def check(self, kafka: Kafka) -> None:
        """See to it, after everything was read, that it was this topic. Raises TopicChanged and Unreachable."""
        found = kafka.topics([self.topic]).get(self.topic)
        if found is None or (self.topic_id is not None and found.topic_id != self.topic_id):
            what = "deleted" if found is None else "deleted and created again"
            raise TopicChanged(f"topic {self.topic!r} was {what} while it was read: run this again")
        ends = kafka.high_watermarks(Partition(self.topic, number) for number in self.ends)
        short = [part.partition for part, end in sorted(ends.items()) if end < self.ends[part.partition]]
        if short:
            numbers = ", ".join(map(str, short))
            raise TopicChanged(f"topic {self.topic!r} was cut off in partition {numbers} while it was read: run again")


def capture(kafka: Kafka, topic: str, *, ends: Mapping[int, int] | None = None, wait: float = 60.0) -> Extent:
    """The whole topic as it is now, or up to these ``ends``; transactions open below them are waited for.

    ``ends`` are next offsets by number of partition, not above the high watermarks. Raises ConfigError where there is
    no such topic, Unreachable where a transaction stays open for ``wait`` seconds (naming its producer) or Kafka does
    not answer.
    """
    found = described_topic(kafka, topic)
    partitions = found.all() if ends is None else [Partition(topic, number) for number in sorted(ends)]
    starts = kafka.log_starts(partitions)
    marks = kafka.high_watermarks(partitions) if ends is None else {part: ends[part.partition] for part in partitions}
    _settle(kafka, marks, wait)
    return Extent(
        topic=topic,
        topic_id=found.topic_id,
        starts=by_number(starts),
        ends=by_number(marks),
    )


def by_number(offsets: Mapping[Partition, int]) -> dict[int, int]:
    """Offsets of one topic by number of partition."""
    return {partition.partition: offset for partition, offset in offsets.items()}


def described_topic(kafka: Kafka, name: str) -> Topic:
    """The topic as the cluster describes it. Raises ConfigError where there is none, Unreachable."""
    topic = kafka.topics([name]).get(name)
    if topic is None:
        raise ConfigError(f"topic {name!r} does not exist; `compactory directories` lists what there is")
    return topic


def _settle(kafka: Kafka, ends: Mapping[Partition, int], wait: float) -> None:
    """Wait until every transaction below these ends was committed or aborted."""
    deadline = time.monotonic() + wait
    while True:
        stable = kafka.stable_offsets(ends)
        behind = [part for part, end in ends.items() if stable.get(part, 0) < end]
        if not behind:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK_EVERY)
    said = "; ".join(
        f"partition {part.partition} from offset {stable.get(part, 0)}, whose producer is listed by:"
        f" {kafka.list_producers_command(part)}"
        for part in sorted(behind)
    )
    raise Unreachable("Kafka", f"topic {behind[0].topic!r} has open transactions after {wait:g} s: {said}")
