"""The rows that a poll of a table must send, as queries and in chunks. In loads Postgres writes the records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import psycopg
from psycopg import sql
from psycopg.pq.abc import PGresult

from compactory_connectors.connect.record.record import LogUnreadable
from compactory_connectors.postgres.postgres_errors import refusal

from ..offsets.offset import SourceOffset
from ..offsets.offset_parts import PartialPoll, RowPhase
from ..planning.row_order import order_columns
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import ChunkReader, PageFill, RawRow
from ..postgres.server import Server, statement
from .conditions import Conditions
from .rendering import Rendered, Renderer
from .written_rows import FIRST, WrittenRows

__all__ = ["PollRows", "RowChunk"]

_DELETIONS = "deletions"
_LIVING = RowPhase.LIVING.raw


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Some rows of a poll, in the order of emission."""

    rows: int
    render: Callable[[], Rendered]
    """Makes their records; call it once, before the next chunk is asked for. Raises RowFailed."""
    ends: Sequence[RawRow]
    """Phase, place and xid of the rows that decide the offset; the last row's are last."""
    has_more: bool
    """Other chunks may follow."""


class PollRows:
    """Reads the rows of one table's polls, within the transaction of a poll. Owned by one thread."""

    def __init__(self, server: Server, plan: TablePlan, render: Renderer) -> None:
        self._server = server
        self._plan = plan
        self._render = render
        self._where = Conditions(plan)
        self._table = sql.Identifier(plan.schema, plan.name)
        self._columns = plan.columns()
        self._order = order_columns(plan)
        self._written = WrittenRows(server, plan)
        self.reads_log = True
        """False: a sweep finds deleted keys instead."""

    def writes_records(self, base: SourceOffset) -> bool:
        """Return True if Postgres writes the records: those of living rows, in a load.

        Postgres may then prepare a chunk while the former one is used: the connection can't run other statements.
        """
        return base.seen_snapshot is None and self._written.is_usable

    def queries(self, base: SourceOffset) -> list[tuple[str, sql.Composed]]:
        """Return name and text of each query of the rows that the offset does not cover."""
        queries = [("rows", self._rows(self._where.unseen_rows(base)))]
        if self._plan.adopted and self.reads_log and base.seen_snapshot is not None:
            deleted = statement(
                "source/deleted",
                columns=self._render.logged_columns,
                names=sql.Literal(self._render.logged_names),
                nulls=sql.SQL("NULL, " * (len(self._order) - 1)),
                oid=sql.Literal(self._plan.oid),
                unseen=self._where.unseen_deletions(base),
            )
            queries.append((_DELETIONS, deleted))
        return queries

    def count(self, base: SourceOffset) -> int:
        """Return the number of rows of the table that the offset does not cover."""
        unseen = self._where.unseen_rows(base)
        return int(self._server.scalar(statement("source/count_rows", table=self._table, unseen=unseen)))

    def needed(self, polls: tuple[PartialPoll, ...]) -> tuple[PartialPoll, ...]:
        """Return the partial polls without those whose rows the last one covers: it saw them later."""
        if not polls or polls[-1].in_deletions:
            return polls
        return (*(poll for poll in polls[:-1] if self._is_needed(poll, polls[-1])), polls[-1])

    def _is_needed(self, former: PartialPoll, newer: PartialPoll) -> bool:
        uncovered = sql.SQL("true") if former.in_deletions else self._where.covered_only_by(former, newer)
        return bool(self._server.scalar(statement("source/uncovered_rows", table=self._table, left=uncovered)))

    def readers(self, base: SourceOffset, fill: PageFill) -> dict[str, ChunkReader]:
        """Return readers of the changes since ``base``, for a poll that probably needs these rows."""
        connection = self._server.connection
        return {name: ChunkReader(connection, f"prefetched {name}", query, fill) for name, query in self.queries(base)}

    def chunks(
        self,
        base: SourceOffset,
        fill: PageFill,
        purpose: str = "",
        prefetched: Mapping[str, ChunkReader] = MappingProxyType({}),
    ) -> Generator[RowChunk]:
        """Yield chunks as large as pages; the last one may be empty.

        ``purpose`` distinguishes the cursors of two readings in one transaction; ``prefetched`` readers are open.
        Raises LogUnreadable and psycopg.Error.
        """
        queries = [] if prefetched else self.queries(base)
        if self.writes_records(base):
            unseen = self._where.unseen_rows(base)
            living = sql.SQL("{} AND {}").format(unseen, self._where.alive())
            with closing(self._written_chunks(living, fill, f"{purpose}formatted")) as chunks:
                yield from chunks
            if self._plan.connector.soft_delete is None:
                return
            deactivated = sql.SQL("{} AND NOT ({})").format(unseen, self._where.alive())
            queries = [("rows", self._rows(deactivated))]
        connection, place = self._server.connection, self._render.phase
        opened = (ChunkReader(connection, f"{purpose}{name}", query, fill) for name, query in queries)
        readers = [reader for reader in (*prefetched.values(), *opened) if not reader.ended]
        rows, has_more = list[RawRow](), True
        while has_more:
            rows += self._page(readers[0]) if readers else ()
            if readers and readers[0].ended:
                readers.pop(0)
                if readers:  # the next reader continues the chunk
                    continue
            has_more = bool(readers)
            yield RowChunk(len(rows), partial(self._render.render, rows), [row[place:] for row in rows], has_more)
            rows = []

    def _page(self, reader: ChunkReader) -> list[RawRow]:
        try:
            return reader.read_page()
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            if reader.name.endswith(_DELETIONS) and self._plan.sweeps:
                raise LogUnreadable(refusal(error)) from error
            raise

    def _rows(self, unseen: sql.Composable) -> sql.Composed:
        return statement(
            "source/rows",
            phase=self._where.phase(),
            places=self._places(),
            order=sql.SQL(", ").join(self._order),
            columns=self._columns,
            table=self._table,
            unseen=unseen,
        )

    def _places(self) -> sql.Composable:
        return sql.SQL(", ").join(sql.SQL("({})::text").format(part) for part in self._order)

    def _written_chunks(self, living: sql.Composable, fill: PageFill, name: str) -> Generator[RowChunk]:
        """Yield chunks of living rows that Postgres writes."""
        query = statement(
            "source/formatted",
            columns=self._written.columns(),
            places=self._places(),
            table=self._table,
            living=living,
            order=sql.SQL(", ").join(self._order),
        )
        is_complete = self._plan.connector.soft_delete is None
        page: list[PGresult] = []
        with closing(self._written.results(name, query, fill)) as results:
            for result, is_full, is_last in results:
                page += [result] if result.ntuples else []
                if is_full and (page or is_complete):
                    yield self._written_chunk(page, has_more=not (is_last and is_complete))
                    page = []

    def _written_chunk(self, page: list[PGresult], *, has_more: bool) -> RowChunk:
        """Return a chunk of records that Postgres wrote; its last row with a timestamp decides the offset's."""
        last = next(_backwards(page), None)
        dated = next((place for place in _backwards(page) if place[0].get_value(place[1], FIRST) is not None), last)
        ends = [self._end(*place) for place in dict.fromkeys((dated, last)) if place is not None]
        return RowChunk(sum(result.ntuples for result in page), partial(self._render_written, page), ends, has_more)

    def _end(self, result: PGresult, row: int) -> RawRow:
        places = range(FIRST, FIRST + len(self._order))
        return [_LIVING, *(result.get_value(row, place) for place in places), None]

    def _render_written(self, page: list[PGresult]) -> Rendered:
        rendered = Rendered()
        for result in page:
            keys, values, fallback = self._written.read(result)
            if not fallback:
                rendered.records += zip(keys, values, strict=True)
                continue
            for row, record in enumerate(zip(keys, values, strict=True)):
                if row in fallback:
                    rendered += self._render.render([[*fallback[row], *self._end(result, row)]])
                else:
                    rendered.records.append(record)
        return rendered


def _backwards(page: Sequence[PGresult]) -> Iterator[tuple[PGresult, int]]:
    """Return the rows of a page from its last one on, each as a result and a number."""
    return ((result, row) for result in reversed(page) for row in range(result.ntuples - 1, -1, -1))
