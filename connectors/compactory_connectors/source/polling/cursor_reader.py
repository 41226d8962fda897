"""Reads the rows after the last timestamp or id of a view, a query or another relation without row versions.

Like the real connector it misses rows that commit with a smaller timestamp or id than the last one that was read. Pages
end only between rows with different timestamps or ids, so that a restart loses no row that was visible.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from psycopg import sql

from compactory.errors import ConfigError
from compactory_connectors.connect.record.record import RowFailed

from ..offsets.offset import SourceOffset
from ..planning import row_order
from ..planning.row_order import parse_timestamp, read_limit
from ..planning.table_plan import Reading, TablePlan
from ..postgres.catalog import describe_query
from ..postgres.chunk_reader import PAGE_ROWS, ChunkReader, PageBytes, PageFill, RawRow
from ..postgres.poll_transaction import TableReplaced, read_transaction
from ..postgres.server import Server, statement
from .offset_builder import not_whole
from .reader import Expect, Reader, RecordBatch

__all__ = ["CursorReader"]

_Place = tuple[bytes | None, ...]


class CursorReader(Reader):
    """Reads a relation in the order of timestamp and id, or whole. Owned by one thread."""

    def __init__(self, server: Server, plan: TablePlan, offset: SourceOffset) -> None:
        super().__init__(server, plan, offset)
        self._next_query: sql.Composed | None = None  # of the rows after the page that was handed over
        self._order = (
            []
            if plan.reading is Reading.WHOLE
            else row_order.order_columns(replace(plan, tie_breakers=()), total=False)
        )

    def batches(
        self, page_rows: int = PAGE_ROWS, page_bytes: PageBytes | None = None, expect: Expect | None = None
    ) -> Generator[RecordBatch]:
        with read_transaction(self._server) as now_ms:
            self._check_shape()
            identity = self._server.identity(self.plan.oid).keep_session_of(self.offset.identity)
            offset = self.offset.completed(self.offset.seen_snapshot)
            base = replace(offset, identity=identity, shape=self.plan.shape)
            query = self._query(base, read_limit(self.plan, now_ms))
            if expect is not None:
                expected = ChunkReader(self._server.connection, "expected rows", query, PageFill(page_rows, page_bytes))
                while rows := expected.read_page():
                    expect(self._render.render(rows).records)
            reader = ChunkReader(self._server.connection, "rows", query, PageFill(page_rows, page_bytes))
            complete: _Place | None = None
            rows = reader.read_page()
            while not reader.ended and (following := reader.read_page()):
                complete = self._complete(rows, following[0], complete)
                page = self._at(base, complete)
                rendered = self._render.render(rows)
                self._next_query = self._query(page, read_limit(self.plan, now_ms))
                yield RecordBatch(rendered.records, page, skipped=rendered.skipped, removals=rendered.removals)
                rows = following
            rendered = self._render.render(rows)
            last = self._at(base, self._place(rows[-1]) if rows else complete)
            self._next_query = None
        persist = bool(rows) or last.shape != self.offset.shape
        yield RecordBatch(rendered.records, last, persist, rendered.skipped, rendered.removals)

    def count(self) -> int:
        with read_transaction(self._server) as now_ms:
            query = self._query(self.offset, read_limit(self.plan, now_ms))
            return int(self._server.scalar(statement("source/pending", rows=query)))

    def rows_left(self) -> int:
        """Implement :meth:`Reader.rows_left`: perhaps some rows of the page are counted again."""
        return int(self._server.scalar(statement("source/pending", rows=self._next_query))) if self._next_query else 0

    def query_text(self) -> str:
        return self._query(self.offset, "now").as_string(self._server.connection)

    def _check_shape(self) -> None:
        plan = self.plan
        try:
            if plan.connector.query is not None:
                shape = describe_query(self._server.connection, plan.connector.query, masked=True).digest()
            else:
                shape = self._server.shape(plan.oid)
        except ConfigError as error:
            raise TableReplaced(str(error)) from error
        if shape != plan.shape:
            raise TableReplaced(f"{plan.qualified}: its columns have changed")

    def _query(self, base: SourceOffset, limit: str) -> sql.Composed:
        parts = {
            "columns": self._columns,
            "phase": self._where.phase(),
            "relation": self.plan.relation(),
            "suffix": self.plan.suffix(),
        }
        if self.plan.reading is Reading.WHOLE:
            return statement("source/whole", **parts)
        until = row_order.before_limit(self.plan, limit)
        bounds = [
            row_order.after_cursor(self.plan, base.cursor, base.initial_timestamp),
            *([] if until is None else [until]),
        ]
        return statement(
            "source/rows_after",
            **parts,
            places=sql.SQL(", ").join(sql.SQL("({})::text").format(part) for part in self._order),
            order=sql.SQL(", ").join(self._order),
            behind=sql.SQL(" AND ").join(bounds),
        )

    def _place(self, row: RawRow) -> _Place:
        first = self._render.phase + 1
        return tuple(row[first : first + len(self._order)])

    def _complete(self, rows: Sequence[RawRow], following: RawRow, former: _Place | None) -> _Place | None:
        """Return the last place whose rows are all among ``rows`` or earlier ones."""
        next_place = self._place(following)
        return next((self._place(row) for row in reversed(rows) if self._place(row) != next_place), former)

    def _at(self, base: SourceOffset, at: _Place | None) -> SourceOffset:
        """Return the offset at a place, or ``base`` without one."""
        if not at or self.plan.reading is Reading.WHOLE:
            return base
        if self.plan.incrementing and at[-1] is None:
            raise RowFailed(f"column {self.plan.incrementing}: NULL, which the incrementing column must not be")
        try:
            number = int(at[-1] or 0) if self.plan.incrementing else None
        except ValueError:
            raise not_whole(self.plan) from None
        if not self.plan.timestamps:
            return replace(base, incrementing=number)
        milliseconds, nanos = parse_timestamp((at[0] or b"").decode(), self.plan.connector.columns.zone)
        return replace(base, timestamp=milliseconds, timestamp_nanos=nanos, incrementing=number)
