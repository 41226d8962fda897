"""How far a load is, and how long it may still take. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A first load, or a full one, as this process has seen it since it began or went on with it.

    ``rows`` of the ``of`` rows that were left then have been read, in ``seconds``; what commits meanwhile comes on top.
    """

    rows: int
    of: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rows a second, on average since it began."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """The seconds that the rest takes at this rate; None before anything was read."""
        return max(0, self.of - self.rows) / self.rate if self.rate else None

    def fields(self) -> dict[str, float | None]:
        """The fields of the status; ``eta`` in seconds."""
        eta = None if self.eta is None else round(self.eta, 1)
        return {"rows": self.rows, "of": self.of, "rate": round(self.rate), "eta": eta}

    def __str__(self) -> str:
        share = min(1.0, self.rows / self.of) if self.of else 1.0
        left = "" if self.eta is None else f", {self.eta:,.0f} s left"
        return f"{self.rows:,} of {self.of:,} rows ({share:.0%}), {self.rate:,.0f} a second{left}"
