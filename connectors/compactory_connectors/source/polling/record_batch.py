"""The result of a poll: records with the offset that covers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from compactory_connectors.connect.record.record import RowFailed
from compactory_connectors.kafka.producer_record import ProducerRecord

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import ResendReason
from .load_progress import Load
from .removal import Removal

__all__ = ["RecordBatch", "pages"]

_Item = TypeVar("_Item")


def pages(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Slices of ``size`` items, the last one of what is left."""
    return (items[start : start + size] for start in range(0, len(items), size))


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records and the offset that covers them; ``persist`` False: nothing to send, only remember the offset.

    ``skipped`` says of each row that could not be converted which one it was and why, where such rows are tolerated.
    ``removals`` are those of the records that stand for deactivated or deleted rows.
    ``resend_reason`` says why records may have been sent before. ``load`` is how far a load is with this page.
    """

    records: list[ProducerRecord]
    offset: SourceOffset
    persist: bool = True
    skipped: Sequence[RowFailed] = ()
    removals: Sequence[Removal] = ()
    resend_reason: ResendReason | None = None
    load: Load | None = None
