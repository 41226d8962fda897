"""The topics of a read, and the positions where it ends: now, a cursor, or a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from compactory.errors import ConfigError
from compactory.kafka.client import Kafka
from compactory.records import Partition, Topic
from compactory.watch.change import Cursor

from ..topic.extent import Extent, by_number, capture, described_topic
from .options import ReadOptions

__all__ = ["check_position", "extents_of", "offsets_at", "topics_of"]


def topics_of(kafka: Kafka, options: ReadOptions) -> list[str]:
    """Return the names of the topics. Raises ConfigError where no topic fits the pattern, Unreachable."""
    if options.pattern is None:
        return list(options.topics)
    names = [name for name in kafka.topic_names() if re.fullmatch(options.pattern, name)]
    if not names:
        raise ConfigError(f"option subscribePattern: no topic's name fits {options.pattern!r}")
    return names


def extents_of(kafka: Kafka, options: ReadOptions) -> list[Extent]:
    """Return the topics up to the high watermarks of now, or up to the position that the options name.

    Raises ConfigError for a position that is not, or not any more, one of its topic; Unreachable.
    """
    return [_extent(kafka, name, options) for name in topics_of(kafka, options)]


def _extent(kafka: Kafka, name: str, options: ReadOptions) -> Extent:
    if options.at is None:
        return capture(kafka, name, wait=options.wait)
    ends = offsets_at(kafka, described_topic(kafka, name), options.at, "at")
    extent = capture(kafka, name, ends=ends, wait=options.wait)
    return replace(extent, starts={part: min(start, extent.ends[part]) for part, start in extent.starts.items()})


def offsets_at(kafka: Kafka, topic: Topic, text: str, option: str) -> dict[int, int]:
    """Return the next offset of each partition at a position: a cursor ``TOPICID;0:42,1:17``, or a time.

    Partitions that a cursor does not name are newer, and begin at their first offset. Raises ConfigError for a
    position that is not, or not any more, one of this topic.
    """
    if ";" not in text:
        return by_number(kafka.offsets_at(topic.all(), _milliseconds(text, option)))
    cursor = Cursor.parse(text)
    check_position(kafka, topic, cursor.topic_id, cursor.positions, f"option {option}: take another position")
    return by_number(kafka.log_starts(topic.all())) | dict(cursor.positions)


def check_position(kafka: Kafka, topic: Topic, topic_id: str | None, positions: Mapping[int, int], remedy: str) -> None:
    """Raise ConfigError where these next offsets are not in the topic, or those of a former topic of this name."""
    if topic_id is not None and topic.topic_id is not None and topic_id != topic.topic_id:
        raise ConfigError(f"topic {topic.name!r} was deleted and created again since this position; {remedy}")
    if unknown := sorted(set(positions) - set(topic.partitions)):
        raise ConfigError(f"topic {topic.name!r} has no partition {', '.join(map(str, unknown))}; {remedy}")
    partitions = [Partition(topic.name, number) for number in positions]
    starts, ends = kafka.log_starts(partitions), kafka.high_watermarks(partitions)
    for part in partitions:
        position = positions[part.partition]
        if position < starts[part]:
            raise ConfigError(
                f"partition {part.partition} of topic {topic.name!r} begins at offset {starts[part]}: the records from"
                f" offset {position} on are gone; {remedy}"
            )
        if position > ends[part]:
            raise ConfigError(
                f"partition {part.partition} of topic {topic.name!r} ends at offset {ends[part]}, before {position}: it"
                f" was cut off; {remedy}"
            )


def _milliseconds(text: str, option: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        words = "earliest, latest, " if option == "startingOffsets" else ""
        raise ConfigError(
            f"option {option} must be {words}a cursor such as 'abc;0:42,1:17' or a time such as 2026-03-01T00:00:00Z,"
            f" not {text[:300]!r}"
        ) from None
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
