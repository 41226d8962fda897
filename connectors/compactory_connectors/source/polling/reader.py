"""The base class of readers of tables, views and queries, and what a poll returns: records with their offset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from psycopg import sql

from compactory_connectors.connect.record.record import RowFailed
from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.postgres.snapshot import Snapshot

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import ResendReason
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import PAGE_ROWS, PageBytes
from ..postgres.server import Server
from .conditions import Conditions
from .removal import Removal
from .rendering import Renderer

__all__ = ["Expect", "Load", "Reader", "RecordBatch", "pages"]

Expect: TypeAlias = Callable[[list[ProducerRecord]], object]
"""Takes the records of a poll before the first of them is handed over, in the order in which they will come."""

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


class Reader(ABC):
    """Reads new rows of one table, view or query. Owned by one thread.

    The generator that :meth:`batches` returns holds a Postgres snapshot while it has more pages; close it to let go.
    """

    def __init__(self, server: Server, plan: TablePlan, offset: SourceOffset) -> None:
        self.plan = plan
        self.offset = offset
        """The offset of the last acknowledged batch."""
        self._server = server
        self._where = Conditions(plan)
        self._render = Renderer(server, plan)
        self._table = sql.Identifier(plan.schema, plan.name)
        self._columns = plan.columns()

    @abstractmethod
    def batches(
        self, page_rows: int = PAGE_ROWS, page_bytes: PageBytes | None = None, expect: Expect | None = None
    ) -> Generator[RecordBatch]:
        """Poll once, in pages of so many rows and bytes. Acknowledge each page before asking for the next.

        ``expect`` takes all records before the first page is handed over. Raises psycopg.Error,
        TableReplaced and RowFailed.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows that a poll would send now. Raises psycopg.Error and TableReplaced."""

    @abstractmethod
    def query_text(self) -> str:
        """Return the query of a poll, for people."""

    def acknowledge(self, batch: RecordBatch) -> None:
        """Continue from the offset of a batch that Kafka has acknowledged."""
        self.offset = batch.offset

    def is_idle(self, snapshot: Snapshot) -> bool:
        """Return True if a poll at this snapshot would find nothing."""
        del snapshot
        return False

    @property
    def is_durable(self) -> bool:
        """Return True if a crash of the server can't take back what was sent; if False, poll again soon."""
        return True

    def blocking_xid(self, snapshot: Snapshot) -> int | None:
        """Return the transaction id that must end before the next poll: too many later ones would be remembered."""
        del snapshot
        return None

    def rows_left(self) -> int:
        """Return the number of rows that come after the page that was handed over last."""
        return 0

    def removals_left(self) -> int:
        """Return the number of deletions after the page that was handed over last, as far as known."""
        return 0
