"""The results of a poll: records with the offset that covers them, and the progress of a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from compactory_connectors.connect.record.record import RowFailed
from compactory_connectors.kafka.producer_record import ProducerRecord

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import ResendReason
from .removal import Removal

__all__ = ["Load", "RecordBatch", "pages"]

_Item = TypeVar("_Item")


def pages(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Return slices of ``size`` items; the last one may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The progress of a load since this process began or continued it.

    ``rows`` of ``of`` rows were read in ``seconds``. Rows that commit meanwhile are not in ``of``.
    """

    rows: int
    of: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rows a second, on average."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """The seconds that the remaining rows take at this rate; None before any row was read."""
        return max(0, self.of - self.rows) / self.rate if self.rate else None

    def fields(self) -> dict[str, float | None]:
        """The fields of the status; ``eta`` in seconds."""
        eta = None if self.eta is None else round(self.eta, 1)
        return {"rows": self.rows, "of": self.of, "rate": round(self.rate), "eta": eta}

    def __str__(self) -> str:
        share = min(1.0, self.rows / self.of) if self.of else 1.0
        remaining = "" if self.eta is None else f", {self.eta:,.0f} s left"
        return f"{self.rows:,} of {self.of:,} rows ({share:.0%}), {self.rate:,.0f} a second{remaining}"


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records and the offset that covers them; ``persist`` False: the offset is not published.

    ``skipped`` names each row that could not be converted, with the reason, if such rows are tolerated. ``removals``
    are the records of deactivated or deleted rows. ``resend_reason``: the reason why records may have been sent before.
    ``load``: the progress of a load with this page.
    """

    records: list[ProducerRecord]
    offset: SourceOffset
    persist: bool = True
    skipped: Sequence[RowFailed] = ()
    removals: Sequence[Removal] = ()
    resend_reason: ResendReason | None = None
    load: Load | None = None
