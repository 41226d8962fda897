"""Up to where a topic is read: now, a cursor of ours, or a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition, Topic
from compactory.watch.change import Cursor

from ..topic.extent import Extent, by_number, capture, described_topic
from .options import ReadOptions

__all__ = ["check_position", "extent_of", "offsets_at"]


def extent_of(kafka: Kafka, options: ReadOptions) -> Extent:
    """The topic up to the high watermarks of now, or up to the position that the options name.

    Raises ConfigError for a position that is not, or not any more, one of this topic; Unreachable.
    """
    name = options.directory.topic
    if options.at is None:
        return capture(kafka, name, wait=options.wait)
    topic = described_topic(kafka, name)
    ends = offsets_at(kafka, topic, options.at, "at")
    extent = capture(kafka, name, ends=ends, wait=options.wait)
    return replace(extent, starts={part: min(start, extent.ends[part]) for part, start in extent.starts.items()})


def offsets_at(kafka: Kafka, topic: Topic, text: str, option: str) -> dict[int, int]:
    """The next offset of every partition at a position: a cursor ``TOPICID;0:42,1:17``, or a time.

    Partitions that a cursor does not name came later, and begin at their first offset. Raises ConfigError for a
    position that is not, or not any more, one of this topic.
    """
    if ";" not in text:
        return by_number(kafka.offsets_at(topic.all(), _time(text, option)))
    cursor = Cursor.parse(text)
    check_position(kafka, topic, cursor.topic_id, cursor.positions, f"option {option}: take another position")
    return by_number(kafka.log_starts(topic.all())) | dict(cursor.positions)


def check_position(kafka: Kafka, topic: Topic, topic_id: str | None, positions: Mapping[int, int], remedy: str) -> None:
    """Raise ConfigError where these next offsets are not in the topic, or those of a former one of its name."""
    if topic_id is not None and topic.topic_id is not None and topic_id != topic.topic_id:
        raise ConfigError(f"topic {topic.name!r} was deleted and created again since this position; {remedy}")
    if unknown := sorted(set(positions) - set(topic.partitions)):
        raise ConfigError(f"topic {topic.name!r} has no partition {', '.join(map(str, unknown))}; {remedy}")
    partitions = [Partition(topic.name, number) for number in positions]
    starts, ends = kafka.log_starts(partitions), kafka.high_watermarks(partitions)
    for part in partitions:
        at = positions[part.partition]
        if at < starts[part]:
            raise ConfigError(
                f"partition {part.partition} of topic {topic.name!r} begins at offset {starts[part]}: the records from"
                f" offset {at} on are gone; {remedy}"
            )
        if at > ends[part]:
            raise ConfigError(
                f"partition {part.partition} of topic {topic.name!r} ends at offset {ends[part]}, before {at}: it was"
                f" cut off; {remedy}"
            )


def _time(text: str, option: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        words = "earliest, latest, " if option == "startingOffsets" else ""
        raise ConfigError(
            f"option {option} must be {words}a cursor such as 'abc;0:42,1:17' or a time such as 2026-03-01T00:00:00Z,"
            f" not {text[:300]!r}"
        ) from None
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
