"""The table that a view reads, which the store opens, closes and swaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compactory.errors import CompactoryError
from compactory.table.table import ReadableTable, Table
from compactory.watch.change import Cursor

__all__ = ["Served"]


class Served:
    """The table that a view reads, once the store is ready. The store opens, closes and swaps it."""

    __slots__ = ("age", "entries", "open", "recorded", "refusal", "stale_reads", "table")

    def __init__(
        self,
        refusal: Callable[[], CompactoryError],
        age: Callable[[], float],
        recorded: Callable[[float], Table],
    ) -> None:
        self.open = False
        self.recorded = recorded  # the table that is served, whose changes are recorded; waits for the reader's thread
        self.refusal = refusal
        self.age = age  # seconds since all of it was last known to be applied to the end of the log
        self.stale_reads = 0  # reads that demanded fresher data and were served what there is
        self.table: ReadableTable
        self.entries: Mapping[bytes, bytes]  # most of the table's: one that is not here may still be in its storage

    def cursor(self) -> Cursor:
        """Return where a watch of the table that is served now would begin."""
        return Cursor(self.table.topic_id, self.live_table.changes.positions)

    @property
    def live_table(self) -> Table:
        """The table that the reader thread goes on writing; a snapshot has none."""
        assert isinstance(self.table, Table)
        return self.table

    def swap(self, table: ReadableTable) -> None:
        """Answer from this table from now on."""
        self.table = table
        self.entries = table.directory_storage.loaded_entries  # one step nearer: a lookup counts nanoseconds
