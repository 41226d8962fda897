"""A ``pg_snapshot``: the transactions that had ended when the snapshot was taken. Pure.

Source: PostgreSQL documentation, 9.27 "Transaction ID and Snapshot Information Functions".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Transactions below ``xmin`` had ended, those from ``xmax`` on had not begun, those in ``xip`` were running."""

    xmin: int
    xmax: int
    xip: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read the text form ``xmin:xmax:xip,xip``. Raises ValueError."""
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in xip.split(",")) if xip else ())

    def running(self, own: int) -> Iterable[int]:
        """Return transactions below the reader's ``own`` id that may still run: ``xip``, and those from ``xmax`` on."""
        return (*self.xip, *range(self.xmax, own))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.xip))}"
