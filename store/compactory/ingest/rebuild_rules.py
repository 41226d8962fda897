"""The rules by which a topic is read again: instead of resuming a checkpoint, and while it is followed. Pure.

Two more causes are found elsewhere: a topic that was created again (`discovery`) and damage on disk (`progress`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from compactory.records import Partition, Rebuild, RebuildCause, Topic
from compactory.storage.checkpoint import CaughtUp, Checkpoint

__all__ = ["Mark", "TopicLog", "dated", "missed_tombstones", "needed_rebuild", "truncation"]

_YEARS = 1e9  # seconds
_SKEW = 10.0  # seconds by which clocks of two machines may differ
_UNKNOWN = 0.0  # the time of a mark that was written by a clock that was ahead


class Mark(NamedTuple):
    """The time at which a partition was last known to be applied to its end, and the end offset at that time."""

    at: float
    end: int


class TopicLog(NamedTuple):
    """A topic and its log as the cluster describes them.

    ``starts`` and ``ends`` are log starts and high watermarks; ``retention`` is delete.retention.ms in seconds; ``at``
    is when the cluster was asked, in seconds since 1970.
    """

    topic: Topic
    cluster_id: str | None
    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    retention: float
    at: float


def dated(checkpoint: Checkpoint, *, wall: float, clock: float, boot: str | None) -> Checkpoint:
    """Return a checkpoint with marks by the current wall clock. ``wall``, ``clock`` and ``boot`` are the current ones.

    A mark of the same run of the machine is dated by the monotonic clock. A mark in the future was written while the
    wall clock was ahead: its age is unknown.
    """

    def date(mark: CaughtUp) -> float:
        is_same_run = mark.boot is not None and mark.boot == boot
        at = mark.clock + wall - clock if is_same_run and mark.clock is not None else mark.at
        return _UNKNOWN if at > wall + _SKEW else min(at, wall)

    marks = {number: replace(mark, at=date(mark)) for number, mark in checkpoint.caught_up.items()}
    return replace(checkpoint, caught_up=marks)


def needed_rebuild(checkpoint: Checkpoint, definition: str, log: TopicLog) -> Rebuild | None:
    """Return the rebuild that is needed if a topic can't be resumed from a checkpoint; None if it can.

    ``definition`` is the fingerprint of the topic's directories.
    """
    topic, cluster_id = log.topic, log.cluster_id
    if checkpoint.definition != definition:
        return Rebuild(RebuildCause.REDEFINED, "its directories are defined otherwise than when it was read")
    if not checkpoint.complete:
        return Rebuild(RebuildCause.INCOMPLETE, "it was never read to the end")
    if checkpoint.topic_id != topic.topic_id or (topic.topic_id is None and checkpoint.cluster_id != cluster_id):
        detail = (
            f"it is another topic than the one that was read: topic id {checkpoint.topic_id}, cluster "
            f"{checkpoint.cluster_id}; now topic id {topic.topic_id}, cluster {cluster_id}"
        )
        return Rebuild(RebuildCause.RECREATED, detail)
    for number, position in checkpoint.positions.items():
        partition = Partition(topic.name, number)
        if partition not in log.ends:
            return Rebuild(RebuildCause.RECREATED, f"partition {number} does not exist any more")
        start, end, mark = log.starts[partition], log.ends[partition], checkpoint.caught_up.get(number)
        if position < start:
            return Rebuild(RebuildCause.LOST, f"partition {number} begins at {start} now, it was read to {position}")
        if position > end:
            return truncation(partition, position, end)
        if mark is None:
            return Rebuild(RebuildCause.INCOMPLETE, f"it is not known when partition {number} was read to its end")
        rebuild = missed_tombstones(partition, Mark(mark.at, mark.end), end, log.at, log.retention)
        if rebuild is not None:
            return rebuild
    return None


def truncation(partition: Partition, position: int, end: int) -> Rebuild:
    """Return the rebuild for a log that ends before the position (unclean leader election, restored broker)."""
    number = partition.partition
    return Rebuild(
        RebuildCause.TRUNCATED, f"partition {number} ends at {end} and was read to {position}: it was cut off"
    )


def missed_tombstones(partition: Partition, mark: Mark, end: int, at: float, retention: float) -> Rebuild | None:
    """Return the rebuild for a reader that was not at the end for longer than tombstones are kept.

    ``mark`` says when the reader was last there, ``end`` is the end offset at the time ``at``. None if the end is still
    the same, or if it was there within ``retention`` seconds.
    """
    seconds = at - mark.at
    if end <= mark.end or seconds <= retention:
        return None
    duration = f"{seconds:.0f} s" if seconds < _YEARS else "an unknown time (the machine's clock was ahead)"
    return Rebuild(
        RebuildCause.TOMBSTONES,
        f"partition {partition.partition} was not read to its end for {duration}, tombstones are kept for "
        f"{retention:g} s (delete.retention.ms): deletions may have been missed",
    )
