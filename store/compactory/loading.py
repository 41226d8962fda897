"""The progress of a load, its time limits, and the errors of waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from compactory.errors import StartTimeout, WaitTimeout
from compactory.records import Partition

__all__ = ["Loading", "blocking_partitions", "missing_offsets", "progress_of", "remaining_seconds", "wait_timeout"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """Progress of reading towards the high watermarks.

    ``read`` and ``total`` count offsets (control records and compacted holes included) over all partitions that are
    known by now. ``seconds`` have passed since the reading began.
    """

    read: int
    total: int
    seconds: float

    @property
    def share(self) -> float:
        """The part that is read, from 0 to 1."""
        return self.read / self.total if self.total else 0.0

    @property
    def rate(self) -> float:
        """Offsets a second, on average since the beginning."""
        return self.read / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """The seconds that the remaining offsets take at this rate; None before anything was read."""
        return (self.total - self.read) / self.rate if self.rate else None

    def __str__(self) -> str:
        eta = "" if self.eta_seconds is None else f", {self.eta_seconds:.0f} s left"
        return f"{self.read:,} of {self.total:,} offsets ({self.share:.0%}), {self.rate:,.0f} a second{eta}"


def progress_of(partitions: Iterable[tuple[int, int, int]], seconds: float) -> Loading:
    """Return how far a load is; ``partitions`` are start, position and target of each partition.

    Records that were read after the target of one partition make up for nothing in another.
    """
    read = total = 0
    for start, position, target in partitions:
        read += max(0, min(position, target) - start)
        total += max(0, target - start)
    return Loading(read=read, total=total, seconds=seconds)


def remaining_seconds(idle: float, stall_timeout: float, elapsed: float, start_timeout: float | None) -> float:
    """Return the seconds that may still pass without progress. Raise StartTimeout if none remain.

    ``idle`` seconds have passed since the last progress, ``elapsed`` since the start.
    """
    until_stall = stall_timeout - idle
    remaining = until_stall if start_timeout is None else min(until_stall, start_timeout - elapsed)
    if remaining <= 0:
        stalled = f"no progress for {stall_timeout:g} s"
        raise StartTimeout(stalled if until_stall <= 0 else f"not ready in {start_timeout:g} s")
    return remaining


def missing_offsets(positions: Mapping[Partition, int], targets: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return how many offsets are missing in each partition that is not at its target yet."""
    return {
        part: target - max(0, positions.get(part, 0))
        for part, target in targets.items()
        if positions.get(part, -1) < target
    }


def wait_timeout(awaited: str, timeout: float, missing: dict[Partition, int]) -> WaitTimeout:
    """Return the error of a wait for ``awaited`` (such as "the barrier") that ended with missing offsets."""
    gaps = ", ".join(f"{part.topic}:{part.partition} by {count}" for part, count in missing.items())
    return WaitTimeout(f"{awaited} was not reached in {round(timeout, 3):g} s: behind in {gaps}", missing)


def blocking_partitions(
    missing_topics: Iterable[str], positions: Mapping[Partition, int], targets: Mapping[Partition, int]
) -> list[dict[str, Any]]:
    """Return what is short of its target; topics that do not exist come first, without partition."""
    missing: list[dict[str, Any]] = [
        {"topic": topic, "partition": None, "position": None, "target": None} for topic in sorted(missing_topics)
    ]
    return missing + [
        {"topic": part.topic, "partition": part.partition, "position": positions[part], "target": target}
        for part, target in targets.items()
        if positions[part] < target
    ]
