"""The base class of readers of tables, views and queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TypeAlias

from psycopg import sql

from compactory_connectors.kafka.producer_record import ProducerRecord
from compactory_connectors.postgres.snapshot import Snapshot

from ..offsets.offset import SourceOffset
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import PAGE_ROWS, PageBytes
from ..postgres.server import Server
from .conditions import Conditions
from .record_batch import RecordBatch
from .rendering import Renderer

__all__ = ["Expect", "Reader"]

Expect: TypeAlias = Callable[[list[ProducerRecord]], object]
"""Takes the records of a poll before the first of them is handed over, in the order in which they will come."""


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
