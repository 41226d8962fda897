"""The rows that a poll of a table must send, as queries and as chunks of them: written by Postgres where it can."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType

import psycopg
from psycopg import sql
from psycopg.pq.abc import PGresult

from compactory_connectors.database.postgres_errors import refusal

from ..cursor.offset import Page, SourceOffset
from ..plan.row_order import ordering
from ..plan.sql_renderer import Formatted, respelt
from ..plan.table_plan import TablePlan
from ..postgres.page_size import PageFill
from ..postgres.server import ChunkReader, RawRow, Server, statement
from ..record.column_value import composite_parts
from ..record.record import LogUnreadable
from .conditions import Conditions
from .prefetch import results_ahead
from .record_batch import Record
from .rendering import Renderer

__all__ = ["PollRows", "RowChunk"]

_DELETIONS = "deletions"
_ASTRAY, _PLACES = 2, 3  # where a formatted row has them, behind key and value


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Some ``rows`` of a poll, in the order of emission."""

    rows: int
    records: Callable[[], list[Record]]
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
        self._columns = sql.SQL(", ").join(sql.Identifier("t", name) for name in plan.rows.columns)
        self._order = ordering(plan)
        encoding = server.connection.info.parameter_status("server_encoding")
        self._formatted = plan.rows.formatted if encoding == "UTF8" else None
        self.reads_log = True
        """False: a sweep looks for what was deleted."""

    def formats(self, base: SourceOffset) -> bool:
        """Whether Postgres writes the records: those of living rows, in a load.

        A chunk may then be asked for before the one before it is used: nothing else may be asked meanwhile.
        """
        return self._formatted is not None and base.seen_snapshot is None

    def queries(self, base: SourceOffset) -> list[tuple[str, sql.Composed]]:
        """What the offset does not cover, as raw rows: name and text of each query."""
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
        return int(self._server.scalar(statement("source/expected", table=self._table, unseen=unseen)))

    def needed(self, pages: tuple[Page, ...]) -> tuple[Page, ...]:
        """Without the pages that the last one has overtaken: it covers every row that they do, and saw it later."""
        if not pages or pages[-1].after[0] == 2:
            return pages
        return (*(page for page in pages[:-1] if self._left(page, pages[-1])), pages[-1])

    def _left(self, old: Page, new: Page) -> bool:
        left = sql.SQL("true") if old.after[0] == 2 else self._where.left_of(old, new)
        return bool(self._server.scalar(statement("source/left", table=self._table, left=left)))

    def readers(self, base: SourceOffset, fill: PageFill) -> dict[str, ChunkReader]:
        """What reads the changes since ``base``, to be opened before it is known whether that is what a poll takes."""
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
        if self._formatted is not None and self.formats(base):
            unseen = self._where.unseen_rows(base)
            living = sql.SQL("{} AND {}").format(unseen, self._where.alive())
            with closing(self._living(self._formatted, living, fill, f"{purpose}formatted")) as chunks:
                yield from chunks
            if self._plan.soft_delete is None:
                return
            deactivated = sql.SQL("{} AND NOT ({})").format(unseen, self._where.alive())
            queries = [("rows", self._rows(deactivated))]
        left: list[RawRow] = []
        opened = (ChunkReader(self._server.connection, f"{purpose}{name}", query, fill) for name, query in queries)
        for reader in (*ahead.values(), *opened):
            while not reader.ended:
                left += self._page(reader)
                if not reader.ended:
                    yield self._raw(left, more=True)
                    left = []
        yield self._raw(left, more=False)

    def _page(self, reader: ChunkReader) -> list[RawRow]:
        try:
            return reader.page()
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

    def _raw(self, rows: list[RawRow], *, more: bool) -> RowChunk:
        width = self._render.phase
        return RowChunk(len(rows), lambda: self._render.records(rows), [row[width:] for row in rows], more)

    def _living(self, parts: Formatted, living: sql.Composable, fill: PageFill, name: str) -> Generator[RowChunk]:
        """Chunks of living rows that Postgres writes."""
        nothing = sql.SQL("NULL")
        whole = sql.SQL("CASE WHEN {} THEN ROW({})::text END")
        query = statement(
            "source/formatted",
            key=parts.key,
            value=parts.value,
            astray=nothing if parts.astray is None else whole.format(parts.astray, self._columns),
            places=self._places(),
            table=self._table,
            living=living,
            order=sql.SQL(", ").join(self._order),
        )
        last = self._plan.soft_delete is None
        page: list[PGresult] = []
        with closing(results_ahead(self._server.connection, name, query, fill)) as results:
            for result, full, ended in results:
                page += [result] if result.ntuples else []
                if full and (page or last):
                    yield self._written(parts, page, more=not (ended and last))
                    page = []

    def _written(self, parts: Formatted, page: list[PGresult], *, more: bool) -> RowChunk:
        """What Postgres wrote; the place of the last row that has a timestamp says how far the poll has come."""
        last = next(_backwards(page), None)
        dated = next((place for place in _backwards(page) if place[0].get_value(place[1], _PLACES) is not None), last)
        ends = [self._end(*place) for place in dict.fromkeys((dated, last)) if place is not None]

        def records() -> list[Record]:
            return [record for result in page for record in self._records(parts, result)]

        return RowChunk(sum(result.ntuples for result in page), records, ends, more)

    def _end(self, result: PGresult, row: int) -> RawRow:
        places = range(_PLACES, _PLACES + len(self._order))
        return [b"0", *(result.get_value(row, place) for place in places), None]

    def _records(self, parts: Formatted, result: PGresult) -> list[Record]:
        get, rows = result.get_value, range(result.ntuples)
        keys, values = [get(row, 0) for row in rows], [get(row, 1) for row in rows]
        keys = respelt(keys) if parts.key_escapes else keys
        values = respelt(values) if parts.value_escapes else values
        records: list[Record] = list(zip(keys, values, strict=True))
        if parts.astray is None:
            return records
        astray = {row for row in rows if get(row, _ASTRAY) is not None}
        return self._mended(records, astray, result) if astray else records

    def _mended(self, records: list[Record], astray: set[int], result: PGresult) -> list[Record]:
        """With the rows among them that must go the ordinary way."""
        mended: list[Record] = []
        for row, record in enumerate(records):
            if row not in astray:
                mended.append(record)
                continue
            columns = composite_parts(result.get_value(row, _ASTRAY) or b"")
            mended += self._render.records([[*columns, *self._end(result, row)]])
        return mended


def _backwards(page: Sequence[PGresult]) -> Iterator[tuple[PGresult, int]]:
    """The rows of a page from its last one on, each as a result and a number."""
    return ((result, row) for result in reversed(page) for row in range(result.ntuples - 1, -1, -1))
