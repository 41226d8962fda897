"""How far a load is, and how long it may still take. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Loading"]


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
