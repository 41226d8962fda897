"""How far a load is, and how long it may still take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from compactory.errors import StartTimeout, WaitTimeout
from compactory.records import Partition

__all__ = ["Loading", "blocking", "lacking", "measure", "patience", "too_late"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """Progress of reading towards the high watermarks.

    ``read`` and ``total`` count offsets (control records and compacted holes included) over all partitions known by
    now; ``seconds`` have passed since the reading began.
    """

    read: int
    total: int
    seconds: float

    @property
    def share(self) -> float:
        """The part that is done, from 0 to 1."""
        return self.read / self.total if self.total else 0.0

    @property
    def rate(self) -> float:
        """Offsets a second, on average since the beginning."""
        return self.read / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """The seconds that the rest takes at this rate; None before anything was read."""
        return (self.total - self.read) / self.rate if self.rate else None

    def __str__(self) -> str:
        eta = "" if self.eta_seconds is None else f", {self.eta_seconds:.0f} s left"
        return f"{self.read:,} of {self.total:,} offsets ({self.share:.0%}), {self.rate:,.0f} a second{eta}"


def measure(places: Iterable[tuple[int, int, int]], seconds: float) -> Loading:
    """Return how far a load is; ``places`` are start, position and target of each partition.

    What one partition was read beyond its target makes up for nothing in another.
    """
    read = total = 0
    for start, position, target in places:
        read += max(0, min(position, target) - start)
        total += max(0, target - start)
    return Loading(read=read, total=total, seconds=seconds)


def patience(idle: float, stall_timeout: float, elapsed: float, start_timeout: float | None) -> float:
    """Return the seconds that may still pass without progress; raise StartTimeout where there are none.

    ``idle`` seconds have passed since the last progress, ``elapsed`` since the start.
    """
    still = stall_timeout - idle
    left = still if start_timeout is None else min(still, start_timeout - elapsed)
    if left <= 0:
        late = f"no progress for {stall_timeout:g} s" if still <= 0 else f"not ready in {start_timeout:g} s"
        raise StartTimeout(late)
    return left


def lacking(positions: Mapping[Partition, int], targets: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return how many offsets are missing in each partition that is not at its target yet."""
    return {
        part: target - max(0, positions.get(part, 0))
        for part, target in targets.items()
        if positions.get(part, -1) < target
    }


def too_late(what: str, timeout: float, missing: dict[Partition, int]) -> WaitTimeout:
    """Return the error of a wait for ``what`` that ended with a gap."""
    places = ", ".join(f"{part.topic}:{part.partition} by {short}" for part, short in missing.items())
    return WaitTimeout(f"{what} was not reached in {round(timeout, 3):g} s: behind in {places}", missing)


def blocking(
    missing: Iterable[str], positions: Mapping[Partition, int], targets: Mapping[Partition, int]
) -> list[dict[str, Any]]:
    """Return what is short of its target; topics that do not exist come first, without partition."""
    short: list[dict[str, Any]] = [
        {"topic": topic, "partition": None, "position": None, "target": None} for topic in sorted(missing)
    ]
    return short + [
        {"topic": part.topic, "partition": part.partition, "position": positions[part], "target": target}
        for part, target in targets.items()
        if positions[part] < target
    ]
