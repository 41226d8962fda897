"""A ``pg_snapshot``: which transactions had ended when it was taken. Pure.

Source: PostgreSQL documentation, 9.27 "Transaction ID and Snapshot Information Functions".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A ``pg_snapshot``: below ``xmin`` everything has ended, from ``xmax`` on nothing had, ``xip`` still ran."""

    xmin: int
    xmax: int
    xip: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read the text form ``xmin:xmax:xip,xip``. Raises ValueError."""
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in xip.split(",")) if xip else ())

    def running(self, own: int) -> Iterable[int]:
        """Transactions below the reader's ``own`` that had not ended: nothing is said of those from ``xmax`` on."""
        return (*self.xip, *range(self.xmax, own))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.xip))}"
