"""What a poll hands over: pages of records with the offset that covers them; and what all readers have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from compactory_connectors.database.snapshot import Snapshot

from ..control.load_progress import Load
from ..control.removal import Removal
from ..cursor.offset import SourceOffset
from ..cursor.resend_reason import ResendReason
from ..plan.row_function import Written
from ..plan.table_plan import TablePlan
from ..postgres.page_size import PAGE_ROWS, PageBytes
from ..postgres.server import RawRow
from ..record.record import RowFailed

if TYPE_CHECKING:
    from .key_ranges import KeyRanges

__all__ = ["Reader", "Record", "RecordBatch", "pages"]

_Item = TypeVar("_Item")

Record = Written
"""Key and value, and where the plan is routed topic and headers; the value None is a tombstone."""


def pages(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Slices of ``size`` items, the last one of what is left."""
    return (items[start : start + size] for start in range(0, len(items), size))


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records and the offset that covers them; ``persist`` False: nothing to send, only remember the offset.

    ``skipped`` says of each row that could not be converted which one it was and why, where such rows are tolerated.
    ``removals`` are those of the records that stand for deactivated or deleted rows.
    ``again`` says why records may have been sent before. ``load`` is how far a load is with this page.
    """

    records: list[Record]
    offset: SourceOffset
    persist: bool = True
    skipped: tuple[RowFailed, ...] = ()
    removals: tuple[Removal, ...] = ()
    again: ResendReason | None = None
    load: Load | None = None


class Reader(Protocol):
    """Reads what is new of one table, view or query. Owned by one thread.

    The generator that :meth:`pages` returns holds a Postgres snapshot while it has more pages; close it to let go.
    """

    @property
    def plan(self) -> TablePlan:
        """What is read, and how."""
        ...

    @property
    def offset(self) -> SourceOffset:
        """What has been acknowledged."""
        ...

    def pages(self, page_rows: int = PAGE_ROWS, page_bytes: PageBytes | None = None) -> Generator[RecordBatch]:
        """Poll once, in pages of so many rows and bytes. Acknowledge each page before asking for the next.

        Raises psycopg.Error, TableReplaced and RowFailed.
        """
        ...

    def acknowledge(self, batch: RecordBatch) -> None:
        """Kafka has the batch: go on from its offset."""
        ...

    def is_idle(self, snapshot: Snapshot) -> bool:
        """Whether a poll at this snapshot could bring nothing."""
        ...

    @property
    def settled(self) -> bool:
        """Whether a crash of the server can't take back what was sent; else a poll soon finds out that it is so."""
        ...

    def waits_for(self, snapshot: Snapshot) -> int | None:
        """The transaction id that must end before a poll may go on, because too much would have to be remembered."""
        ...

    def living_rows(self) -> Iterator[list[RawRow]]:
        """Every row whose key belongs in the topic, in one snapshot, in chunks, with the key's columns alone."""
        ...

    def key_ranges(self) -> KeyRanges | None:
        """The same by ranges of the primary key; None where there is none."""
        ...

    def survivors(self, limit: int) -> int:
        """How many rows live now, counted up to ``limit``."""
        ...

    def removals_left(self) -> int:
        """How many deletions come behind the page that was handed over last, at the most."""
        ...

    def count(self) -> int:
        """How many rows a poll would take now."""
        ...

    def query_text(self) -> str:
        """The query of a poll, for people."""
        ...
