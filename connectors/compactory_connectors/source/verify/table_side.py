"""The records that a topic should hold: those of every row of its table, in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TypeAlias

from psycopg import sql

from compactory_connectors.connect.record.record import KeyParts, RowError

from ..offsets.offset import SourceOffset
from ..planning import row_order
from ..planning.table_plan import Reading, TablePlan
from ..polling.conditions import Conditions
from ..polling.living_rows import keys_joined, snapshot_of
from ..polling.rendering import logged_columns
from ..polling.written_rows import FIRST, WrittenRows
from ..postgres.chunk_reader import PAGE_ROWS, ChunkReader, PageFill, RawRow
from ..postgres.poll_transaction import PollSnapshot
from ..postgres.server import Server, statement
from .checker import Row

__all__ = ["Expected", "TableSnapshot", "table_snapshot"]

_KEYED = sql.SQL("EXISTS (SELECT FROM unnest({arrays}) AS d ({names}) WHERE {matches})")

Expected: TypeAlias = tuple[bytes, bytes | None, int, RawRow]
"""A key with its value, the flags of :class:`Row`, and the row itself."""


class TableSnapshot:
    """A snapshot of a table; rows that the stored offset does not cover are flagged."""

    def __init__(self, server: Server, plan: TablePlan, offset: SourceOffset | None, at: PollSnapshot | None) -> None:
        self.server = server
        self.plan = plan
        self._where = Conditions(plan)
        self._due = _due_rows(server, plan, offset, at)
        self._deletions = _due_deletions(server, plan, offset, at)
        self._since = row_order.after_initial(plan, (offset.initial_timestamp if offset else None) or plan.initial)
        self._columns = plan.columns()
        self._flags_at = len(plan.rows.columns)
        self.unreadable: list[str] = []
        """Why the keys of some rows can't be made."""

    def rows(self, topic: str, only: Sequence[KeyParts] | None = None) -> Iterator[list[Expected]]:
        """Yield every row of a topic in chunks, and every deletion that no poll has read yet.

        With ``only``: rows with these key columns.
        """
        if only is None or only:
            yield from self._read("compared", self._query(self._columns, only), topic)
        if self._deletions is not None:
            yield from self._read("compared deletions", self._deleted(), topic)

    def records(self, topic: str) -> Iterator[list[Expected]]:
        """Yield the same without the rows themselves: written by Postgres if possible, which is faster."""
        written = WrittenRows(self.server, self.plan)
        if not written.is_usable:
            yield from self.rows(topic)
            return
        query = self._query(written.columns(), None)
        with closing(written.results("formatted", query, PageFill(PAGE_ROWS))) as results:
            for result, _, _ in results:
                keys, values, fallback = written.read(result)
                expected: list[Expected] = []
                for row, (key, value) in enumerate(zip(keys, values, strict=True)):
                    flags = result.get_value(row, FIRST) or b"0"
                    if row in fallback:
                        expected += self._expected([*fallback[row], flags], topic)
                    elif key is not None:
                        expected.append((key, value, 0 if flags == b"0" else int(flags), ()))
                yield expected
        yield from self.rows(topic, ())

    def _query(self, columns: sql.Composable, only: Sequence[KeyParts] | None) -> sql.Composed:
        return statement(
            "verification/rows",
            columns=columns,
            present=self._where.present(),
            due=self._due,
            optional=sql.SQL("false") if self._since is None else sql.SQL("({}) IS NOT TRUE").format(self._since),
            relation=self.plan.relation(),
            chosen=sql.SQL("true") if only is None else _KEYED.format(**keys_joined(self.plan, only)),
            suffix=self.plan.suffix() if self.plan.reading is Reading.WHOLE else sql.SQL(""),
        )

    def _read(self, name: str, query: sql.Composed, topic: str) -> Iterator[list[Expected]]:
        reader = ChunkReader(self.server.connection, name, query)
        while rows := reader.read_page():
            yield [expected for row in rows for expected in self._expected(row, topic)]

    def _expected(self, row: RawRow, topic: str) -> Iterator[Expected]:
        """Yield the record of a row; none if it belongs to another topic, or a Filter drops it."""
        plan, flags = self.plan.rows, int(row[self._flags_at] or 0)
        try:
            record = plan.render_deletion(row) if flags & Row.ABSENT else plan.render(row)
        except RowError as error:
            yield from self._failed(row, str(error))
            return
        if record is None or record[0] is None or (len(record) != 2 and record[2] != topic):
            return
        yield record[0], record[1], flags | (Row.ABSENT if record[1] is None else 0), row

    def _failed(self, row: RawRow, reason: str) -> Iterator[Expected]:
        """Yield the key of a row that can't be converted; note the reason if its key can't be made either."""
        try:
            key = self.plan.rows.render_key(row)
        except RowError:
            key = None
        if key is None:
            self.unreadable.append(reason)
        else:
            yield key, None, Row.UNREADABLE, row

    def _deleted(self) -> sql.Composed:
        assert self._deletions is not None
        names, columns = logged_columns(self.plan)
        return statement(
            "verification/deleted",
            columns=columns,
            names=sql.Literal(names),
            flags=sql.Literal(Row.ABSENT | Row.DUE),
            oid=sql.Literal(self.plan.oid),
            unseen=self._deletions,
        )


@contextmanager
def table_snapshot(server: Server, plan: TablePlan, offset: SourceOffset | None) -> Iterator[TableSnapshot]:
    """Begin a snapshot; ``offset`` is the stored one. Raises psycopg.Error and TableReplaced."""
    with snapshot_of(server, plan, changed=True) as at:
        yield TableSnapshot(server, plan, offset, at)


def _due_rows(server: Server, plan: TablePlan, offset: SourceOffset | None, at: PollSnapshot | None) -> sql.Composable:
    """Return the condition of rows ``t`` that a poll would read now; ``at`` is None without row versions."""
    if offset is not None and plan.reading is Reading.CURSOR:
        return row_order.after_cursor(plan, offset.cursor, offset.initial_timestamp)
    if offset is None or at is None or (offset.seen_snapshot is None and plan.reading is Reading.WHOLE):
        return sql.SQL("false")  # each poll reads all rows: new ones are not known
    versions = replace(plan, reading=Reading.VERSIONS)
    return Conditions(versions).unseen_rows(_adapted(server, plan, offset, at))


def _due_deletions(
    server: Server, plan: TablePlan, offset: SourceOffset | None, at: PollSnapshot | None
) -> sql.Composable | None:
    """Return the condition of logged deletions ``d`` that a poll would read now; None without a log."""
    if offset is None or at is None or not plan.adopted:
        return None
    base = _adapted(server, plan, offset, at)
    return None if base.seen_snapshot is None else Conditions(plan).unseen_deletions(base)


def _adapted(server: Server, plan: TablePlan, offset: SourceOffset, at: PollSnapshot) -> SourceOffset:
    """Adapt the offset to the server and table of the snapshot. Without its partial polls more rows are due."""
    base = offset.for_shape(plan.shape).for_server(server.identity(plan.oid), at.snapshot).for_partitions(at.partitions)
    places = len(row_order.order_columns(plan))
    return base if all(len(page.place) == places for page in base.partial_polls) else replace(base, partial_polls=())
