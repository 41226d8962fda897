"""The rows that a poll of a table must send, as queries and as chunks of them: written by Postgres where it can."""

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
from ..offsets.offset_parts import PartialPoll
from ..planning.row_order import order_columns
from ..planning.table_plan import TablePlan
from ..postgres.chunk_reader import ChunkReader, PageFill, RawRow
from ..postgres.server import Server, statement
from .conditions import Conditions
from .rendering import Rendered, Renderer
from .written_rows import FIRST, WrittenRows

__all__ = ["PollRows", "RowChunk"]

_DELETIONS = "deletions"


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Some ``rows`` of a poll, in the order of emission."""

    rows: int
    render: Callable[[], Rendered]
    """Makes their records; to be called once, before the next chunk is asked for. Raises RowFailed."""
    ends: Sequence[RawRow]
    """Phase, place and xid of the rows, as far as they may tell how far the poll has come; the last row's are last."""
    more: bool
    """Others may follow."""


class PollRows:
    """Owned by one thread; everything belongs to the transaction of a poll."""

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
        """False: a sweep looks for what was deleted."""

    def formats(self, base: SourceOffset) -> bool:
        """Whether Postgres writes the records: those of living rows, in a load.

        A chunk may then be asked for before the one before it is used: nothing else may be asked meanwhile.
        """
        return base.seen_snapshot is None and self._written.usable

    def queries(self, base: SourceOffset) -> list[tuple[str, sql.Composed]]:
        """The queries of the rows that the offset does not cover: name and text of each."""
        found = [("rows", self._rows(self._where.unseen_rows(base)))]
        if self._plan.adopted and self.reads_log and base.seen_snapshot is not None:
            deleted = statement(
                "source/deleted",
                columns=self._render.logged_columns,
                names=sql.Literal(self._render.logged_names),
                nulls=sql.SQL("").join([sql.SQL("NULL, ")] * (len(self._order) - 1)),
                oid=sql.Literal(self._plan.oid),
                unseen=self._where.unseen_deletions(base),
            )
            found.append((_DELETIONS, deleted))
        return found

    def expected(self, base: SourceOffset) -> int:
        """How many rows of the table the offset does not cover."""
        unseen = self._where.unseen_rows(base)
        return int(self._server.scalar(statement("source/count_rows", table=self._table, unseen=unseen)))

    def needed(self, polls: tuple[PartialPoll, ...]) -> tuple[PartialPoll, ...]:
        """Without the partial polls that the last one has overtaken: it covers their rows, and saw them later."""
        if not polls or polls[-1].in_deletions:
            return polls
        return (*(poll for poll in polls[:-1] if self._left(poll, polls[-1])), polls[-1])

    def _left(self, old: PartialPoll, new: PartialPoll) -> bool:
        left = sql.SQL("true") if old.in_deletions else self._where.left_of(old, new)
        return bool(self._server.scalar(statement("source/uncovered_rows", table=self._table, left=left)))

    def readers(self, base: SourceOffset, fill: PageFill) -> dict[str, ChunkReader]:
        """Readers of the changes since ``base``, to be opened before it is known whether a poll takes these rows."""
        connection = self._server.connection
        return {name: ChunkReader(connection, f"ahead {name}", query, fill) for name, query in self.queries(base)}

    def chunks(
        self,
        base: SourceOffset,
        fill: PageFill,
        purpose: str = "",
        ahead: Mapping[str, ChunkReader] = MappingProxyType({}),
    ) -> Generator[RowChunk]:
        """Chunks as large as pages may be; only the last one has none behind it, and may be empty.

        ``purpose`` tells the cursors of two readings in one transaction apart; ``ahead`` are open already. Raises
        LogUnreadable and psycopg.Error.
        """
        queries = [] if ahead else self.queries(base)
        if self.formats(base):
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
        readers = [reader for reader in (*ahead.values(), *opened) if not reader.ended]
        rows, more = list[RawRow](), True
        while more:
            rows += self._page(readers[0]) if readers else ()
            if readers and readers[0].ended:
                readers.pop(0)
                if readers:  # the next one goes on with the chunk
                    continue
            more = bool(readers)
            yield RowChunk(len(rows), partial(self._render.render, rows), [row[place:] for row in rows], more)
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
        """Chunks of living rows that Postgres writes."""
        query = statement(
            "source/formatted",
            columns=self._written.columns(),
            places=self._places(),
            table=self._table,
            living=living,
            order=sql.SQL(", ").join(self._order),
        )
        last = self._plan.connector.soft_delete is None
        page: list[PGresult] = []
        with closing(self._written.results(name, query, fill)) as results:
            for result, full, ended in results:
                page += [result] if result.ntuples else []
                if full and (page or last):
                    yield self._written_chunk(page, more=not (ended and last))
                    page = []

    def _written_chunk(self, page: list[PGresult], *, more: bool) -> RowChunk:
        """A chunk of records that Postgres wrote; its last row with a timestamp says how far the poll has come."""
        last = next(_backwards(page), None)
        dated = next((place for place in _backwards(page) if place[0].get_value(place[1], FIRST) is not None), last)
        ends = [self._end(*place) for place in dict.fromkeys((dated, last)) if place is not None]
        return RowChunk(sum(result.ntuples for result in page), partial(self._render_written, page), ends, more)

    def _end(self, result: PGresult, row: int) -> RawRow:
        places = range(FIRST, FIRST + len(self._order))
        return [b"0", *(result.get_value(row, place) for place in places), None]

    def _render_written(self, page: list[PGresult]) -> Rendered:
        found = Rendered()
        for result in page:
            keys, values, fallback = self._written.read(result)
            if not fallback:
                found.records += zip(keys, values, strict=True)
                continue
            for row, record in enumerate(zip(keys, values, strict=True)):
                if row in fallback:
                    found += self._render.render([[*fallback[row], *self._end(result, row)]])
                else:
                    found.records.append(record)
        return found


def _backwards(page: Sequence[PGresult]) -> Iterator[tuple[PGresult, int]]:
    """The rows of a page from its last one on, each as a result and a number."""
    return ((result, row) for result in reversed(page) for row in range(result.ntuples - 1, -1, -1))
