"""The last step before publishing: no tombstone takes away the record of a living row (guarantee 13).

Whatever step wants to remove a key (a poll, a sweep, a repair), the table is asked once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from psycopg import sql
from psycopg.pq import TransactionStatus

from compactory_connectors.connect.record.record import KeyParts
from compactory_connectors.kafka.producer_record import Copy, ProducerRecord
from compactory_connectors.kafka.publisher import Publisher

from ..offsets.offset import SourceOffset
from ..planning.table_plan import Reading, TablePlan
from ..polling.conditions import Conditions
from ..polling.living_rows import LivingRows, snapshot_of
from ..polling.removal import Removal
from ..postgres.server import Server

__all__ = ["RemovalGuard"]


class RemovalGuard:
    """Publishes the records of one table. Owned by one thread.

    ``count_stopped`` is called with the number of removals that were stopped although the row's record had been sent:
    a mistake. A row that was inserted since the removal was found is none; its record will follow.
    """

    def __init__(
        self, server: Server, plan: TablePlan, publisher: Publisher, count_stopped: Callable[[int], None]
    ) -> None:
        self._server = server
        self._plan = plan
        self._publisher = publisher
        self._count_stopped = count_stopped
        self._rows = LivingRows(server, plan)
        self._where = Conditions(plan)
        self.partitioner = publisher.partitioner
        """The hash function that chooses partitions; see `partitioner.partition_by`."""

    def publish(
        self,
        records: Sequence[ProducerRecord],
        offset: ProducerRecord,
        removals: Iterable[Removal] = (),
        copies: Iterable[Copy] = (),
    ) -> set[bytes]:
        """Publish records, of which these are removals, tombstones of copies, and the offset; return keys that stay.

        Raises RowError if the key of a row can't be made, psycopg.Error, TableReplaced, and what a publisher raises.
        Nothing was published then.
        """
        removals, copies = list(removals), list(copies)
        doomed: dict[bytes, KeyParts | None] = {copy.key: None for copy in copies if not copy.misplaced}
        doomed |= {removal.key: removal.parts for removal in removals}
        living = self._living(doomed, offset) if doomed else set()
        if living:
            stopped = {(removal.key, removal.value) for removal in removals if removal.key in living}
            records = [record for record in records if (record[0], record[1]) not in stopped]
            copies = [copy for copy in copies if copy.misplaced or copy.key not in living]
        self._publisher.publish(self._plan.topic, records, offset, copies)
        return living

    def _living(self, doomed: Mapping[bytes, KeyParts | None], offset: ProducerRecord) -> set[bytes]:
        with self._snapshot():
            living = self._rows.among(doomed)
            sent = self._rows.among({key: doomed[key] for key in living}, self._sent(offset)) if living else set()
        if sent:
            self._count_stopped(len(sent))
        return living

    def _sent(self, offset: ProducerRecord) -> sql.Composable:
        """Return the condition of rows whose records the offset covers; all rows if they have no versions."""
        if self._plan.reading is Reading.WHOLE:
            return sql.SQL("false")
        if self._plan.reading is not Reading.VERSIONS:
            return sql.SQL("true")
        unseen = self._where.unseen_rows(SourceOffset.loads(offset[1] or b""))
        return sql.SQL("({}) IS NOT TRUE").format(unseen)

    def _snapshot(self) -> AbstractContextManager[object]:
        """Return the snapshot of the running poll, else a new one."""
        if self._server.connection.info.transaction_status is TransactionStatus.INTRANS:
            return nullcontext()
        return snapshot_of(self._server, self._plan, indexed=True)
