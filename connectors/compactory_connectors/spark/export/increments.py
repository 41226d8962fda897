"""Where an incremental export begins, and whether it may: nothing that it needs may be gone from the topic."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory.kafka.client import Kafka

from ..topic.extent import Extent
from .manifest import Export, Manifest

__all__ = ["begins", "tombstones_kept"]

_REMEDY: Final = "export in full again"
_DAY: Final = 86_400_000


def begins(before: Manifest, extent: Extent, kafka: Kafka, directory: Directory[Any], *, path: str) -> Extent:
    """The offsets that came after an export.

    Raises ConfigError with every reason why what has changed can't be told: another topic, another definition of the
    directory, records that are gone, or tombstones that may be (``delete.retention.ms``).
    """
    retention = tombstones_kept(kafka, extent.topic)
    problems = [*_definition(before, directory, extent), *_gone(before, extent, retention)]
    if problems:
        raise ConfigError(f"--since {path}: {problem}; {_REMEDY}" for problem in problems)
    starts = {number: before.ends.get(number, start) for number, start in extent.starts.items()}
    return replace(extent, starts=starts)


def _definition(before: Manifest, directory: Directory[Any], extent: Extent) -> list[str]:
    problems = []
    if before.export is Export.HISTORY:
        problems.append("it is a history, to which nothing can be added")
    if before.topic != extent.topic:
        problems.append(f"it is of topic {before.topic!r}, not of {extent.topic!r}")
    elif before.topic_id is not None and before.topic_id != extent.topic_id:
        problems.append(f"topic {extent.topic!r} was deleted and created again since")
    for name in ("key", "active", "envelope"):
        was, now = getattr(before, name), getattr(directory, name)
        if was != now:
            problems.append(f"the directory's {name} was {was!r} and is {now!r}")
    return problems


def _gone(before: Manifest, extent: Extent, retention: int) -> list[str]:
    problems = []
    for number, end in sorted(before.ends.items()):
        start, mark = extent.starts.get(number), extent.ends.get(number)
        if start is None or mark is None or mark < end:
            problems.append(f"partition {number} was cut off below offset {end}, to which it reaches")
        elif start > end:
            problems.append(f"records of partition {number} between offsets {end} and {start} were deleted")
    age = time.time() * 1000 - before.captured_ms
    if age > retention:
        problems.append(
            f"it is {_span(age)} old, and tombstones are kept for {_span(retention)} (delete.retention.ms), so that"
            " deletions may have been forgotten"
        )
    return problems


def tombstones_kept(kafka: Kafka, topic: str) -> int:
    """For how many milliseconds tombstones stay at the least."""
    config = kafka.topic_configs([topic]).get(topic, {})
    if "compact" not in config.get("cleanup.policy", "compact"):
        return 1 << 62
    return int(config.get("delete.retention.ms", _DAY))


def _span(milliseconds: float) -> str:
    hours = milliseconds / 3_600_000
    return f"{hours:.1f} hours" if hours >= 1 else f"{milliseconds / 1000:.0f} s"
