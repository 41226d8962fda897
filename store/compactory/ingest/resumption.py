"""Whether what was read of a topic may be gone on with: at a start from a checkpoint, and while following. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from compactory.records import Partition, Rebuild, RebuildCause, Topic
from compactory.storage.checkpoint import CaughtUp, Checkpoint

__all__ = ["dated", "gap_of", "obstacle", "truncation_of"]

_YEARS = 1e9  # seconds
_SKEW = 10.0  # seconds by which clocks of two machines may differ
_UNKNOWN = 0.0  # when a partition was at its end according to a clock that was ahead


def dated(checkpoint: Checkpoint, *, wall: float, clock: float, boot: str | None) -> Checkpoint:
    """Return a checkpoint with its marks as the clock of now would have had them.

    A mark of the same run of the machine is dated by the clock that nobody sets. One that lies in the future was
    written while the wall clock was ahead: its age is not known.
    """

    def moment(mark: CaughtUp) -> float:
        same = mark.boot is not None and mark.boot == boot and mark.clock is not None
        at = mark.at if not same or mark.clock is None else mark.clock + wall - clock
        return _UNKNOWN if at > wall + _SKEW else min(at, wall)

    marks = {number: replace(mark, at=moment(mark)) for number, mark in checkpoint.caught_up.items()}
    return replace(checkpoint, caught_up=marks)


def obstacle(
    checkpoint: Checkpoint,
    topic: Topic,
    *,
    cluster_id: str | None,
    definition: str,
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    retention: float,
    now: float,
) -> Rebuild | None:
    """Return why one can't go on from a checkpoint; None where one can.

    ``starts`` and ``ends`` are log starts and high watermarks; ``retention`` is delete.retention.ms in seconds; ``now``
    seconds since 1970.
    """
    if checkpoint.definition != definition:
        return Rebuild(RebuildCause.REDEFINED, "its directories are defined otherwise than when it was read")
    if not checkpoint.complete:
        return Rebuild(RebuildCause.INCOMPLETE, "it was never read to the end")
    if checkpoint.topic_id != topic.topic_id or (topic.topic_id is None and checkpoint.cluster_id != cluster_id):
        was, has = (f"topic id {name}, cluster {where}" for name, where in (
            (checkpoint.topic_id, checkpoint.cluster_id), (topic.topic_id, cluster_id)
        ))  # fmt: skip
        return Rebuild(RebuildCause.RECREATED, f"it is another topic than the one that was read: {was}; now {has}")
    for number, position in checkpoint.positions.items():
        place = Partition(topic.name, number)
        if place not in ends:
            return Rebuild(RebuildCause.RECREATED, f"partition {number} does not exist any more")
        if position < starts[place]:
            return Rebuild(
                RebuildCause.LOST, f"partition {number} begins at {starts[place]} now, it was read to {position}"
            )
        if position > ends[place]:
            return truncation_of(place, position, ends[place])
        mark = checkpoint.caught_up.get(number)
        if mark is None:
            return Rebuild(RebuildCause.INCOMPLETE, f"it is not known when partition {number} was read to its end")
        if (gap := gap_of(place, (mark.at, mark.end), ends[place], now, retention)) is not None:
            return gap
    return None


def truncation_of(place: Partition, position: int, end: int) -> Rebuild:
    """Return the rebuild for a log that ends before the position (unclean leader election, restored broker)."""
    return Rebuild(
        RebuildCause.TRUNCATED, f"partition {place.partition} ends at {end} and was read to {position}: it was cut off"
    )


def gap_of(place: Partition, mark: tuple[float, int], end: int, now: float, retention: float) -> Rebuild | None:
    """Return the rebuild for a reader that was away from the end for longer than tombstones are kept.

    ``mark`` is when it was last there and where that was, ``end`` where it is at ``now``. None if nothing came since.
    """
    seconds = now - mark[0]
    if end <= mark[1] or seconds <= retention:
        return None
    known = seconds < _YEARS
    long = f"for {seconds:.0f} s" if known else "for an unknown time (the machine's clock was ahead)"
    return Rebuild(
        RebuildCause.TOMBSTONES,
        f"partition {place.partition} was not read to its end {long}, tombstones are kept for "
        f"{retention:g} s (delete.retention.ms): deletions may have been missed",
    )
