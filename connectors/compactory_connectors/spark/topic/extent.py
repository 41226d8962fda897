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

_POLL_INTERVAL = 0.2  # seconds


class TopicChanged(CompactoryError):
    """The topic was created again, or cut off, while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of a partition: ``start`` is the first, ``end`` the one after the last.

    ``epoch`` is the leader epoch of the log before ``start``, by which a broker knows that the log was cut off there;
    -1: not known.
    """

    partition: int
    start: int
    end: int
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A topic between its log starts and its high watermarks at one time, by number of partition.

    No transaction is open below the ends.
    """

    topic: str
    topic_id: str | None
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def offsets(self) -> int:
        """Return the number of offsets; there are no more records."""
        return sum(max(0, end - self.starts[number]) for number, end in self.ends.items())

    @property
    def whole(self) -> list[Span]:
        return [
            Span(partition=number, start=self.starts[number], end=end)
            for number, end in sorted(self.ends.items())
            if self.starts[number] < end
        ]

    def tail(self, offsets: int) -> list[Span]:
        """Return the last ``offsets`` of the largest partition; no span for an empty topic."""
        largest = sorted(self.whole, key=lambda span: span.start - span.end)[:1]
        return [replace(span, start=max(span.start, span.end - offsets)) for span in largest]

    def newest(self, offsets: int) -> list[Span]:
        """Return the last ``offsets`` of each partition."""
        return [replace(span, start=max(span.start, span.end - offsets)) for span in self.whole]

    def spans(self, tasks: int, smallest: int = 100_000) -> list[Span]:
        """Return spans for about ``tasks`` tasks, none smaller than ``smallest`` offsets unless a partition is."""
        size = max(smallest, -(-self.offsets // max(1, tasks)))
        spans: list[Span] = []
        for number, end in sorted(self.ends.items()):
            start = min(self.starts[number], end)
            pieces = max(1, round((end - start) / size))
            cuts = [start + (end - start) * piece // pieces for piece in range(pieces + 1)]
            spans += [Span(partition=number, start=low, end=high) for low, high in pairwise(cuts) if low < high]
        return spans

    def check(self, kafka: Kafka) -> None:
        """Check, after everything was read, that it was this topic. Raises TopicChanged and Unreachable."""
        topic = kafka.topics([self.topic]).get(self.topic)
        if topic is None or (self.topic_id is not None and topic.topic_id != self.topic_id):
            what = "deleted" if topic is None else "deleted and created again"
            raise TopicChanged(f"topic {self.topic!r} was {what} while it was read: run this again")
        ends = kafka.high_watermarks(Partition(self.topic, number) for number in self.ends)
        short = [part.partition for part, end in sorted(ends.items()) if end < self.ends[part.partition]]
        if short:
            numbers = ", ".join(map(str, short))
            raise TopicChanged(f"topic {self.topic!r} was cut off in partition {numbers} while it was read: run again")


def capture(kafka: Kafka, topic: str, *, ends: Mapping[int, int] | None = None, wait: float = 60.0) -> Extent:
    """Return the topic as it is now, or up to these ``ends``, once no transaction is open below them.

    ``ends`` are next offsets by number of partition, not above the high watermarks. Raises ConfigError where there is
    no such topic, Unreachable where a transaction stays open for ``wait`` seconds (with the command that names its
    producer) or Kafka does not answer.
    """
    described = described_topic(kafka, topic)
    partitions = described.all() if ends is None else [Partition(topic, number) for number in sorted(ends)]
    starts = kafka.log_starts(partitions)
    marks = kafka.high_watermarks(partitions) if ends is None else {part: ends[part.partition] for part in partitions}
    _settle(kafka, marks, wait)
    return Extent(
        topic=topic,
        topic_id=described.topic_id,
        starts=by_number(starts),
        ends=by_number(marks),
    )


def by_number(offsets: Mapping[Partition, int]) -> dict[int, int]:
    """Return offsets of one topic by number of partition."""
    return {partition.partition: offset for partition, offset in offsets.items()}


def described_topic(kafka: Kafka, name: str) -> Topic:
    """Return the topic as the cluster describes it. Raises ConfigError where there is none, Unreachable."""
    topic = kafka.topics([name]).get(name)
    if topic is None:
        raise ConfigError(f"topic {name!r} does not exist; `compactory directories` lists what there is")
    return topic


def _settle(kafka: Kafka, ends: Mapping[Partition, int], wait: float) -> None:
    """Wait until every transaction below these ends was committed or aborted."""
    deadline = time.monotonic() + wait
    while True:
        stable = kafka.stable_offsets(ends)
        unsettled = [part for part, end in ends.items() if stable.get(part, 0) < end]
        if not unsettled:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_INTERVAL)
    commands = "; ".join(
        f"partition {part.partition} from offset {stable.get(part, 0)}, whose producer is listed by:"
        f" {kafka.list_producers_command(part)}"
        for part in sorted(unsettled)
    )
    raise Unreachable("Kafka", f"topic {unsettled[0].topic!r} has open transactions after {wait:g} s: {commands}")
