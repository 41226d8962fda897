"""The progress of a load, and the error of a wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactory.errors import WaitTimeout
from compactory.records import Partition

__all__ = ["Loading", "missing_offsets", "wait_timeout"]


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
