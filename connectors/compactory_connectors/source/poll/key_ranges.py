"""The record keys of a table, range by range of its primary key: hashed by Postgres, fetched where that has changed.

Each range is read in a short transaction of its own, so that no snapshot is held for long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql

from ..plan.table_plan import TablePlan
from ..postgres.server import Server, TableReplaced, statement
from .conditions import Conditions
from .digests import digest
from .living_rows import columns_of_keys

__all__ = ["RANGE_ROWS", "KeyRange", "KeyRanges"]

RANGE_ROWS = 10_000
"""Rows of a range when it is read for the first time."""

_Bound = tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Rows behind ``low`` up to ``high`` in the order of the primary key; None: from the first, to the last.

    ``fingerprint`` is Postgres' own hash of their keys, ``digests`` are ours of the record keys, in 8 bytes each.
    """

    low: _Bound
    high: _Bound
    fingerprint: str
    digests: array[int]


class KeyRanges:
    """Reads ranges of one table that has a primary key. Raises psycopg.Error, TableReplaced and RowError."""

    def __init__(self, server: Server, plan: TablePlan, *, size: int = RANGE_ROWS) -> None:
        assert plan.tie_breakers
        self._server = server
        self._plan = plan
        self._size = size
        self._table = sql.Identifier(plan.schema, plan.name)
        self._columns = columns_of_keys(plan)
        self._present = Conditions(plan).present()
        self._order = [sql.Identifier("t", name) for name in plan.tie_breakers]
        names = dict.fromkeys((*plan.rows.key_columns, *plan.rows.case_columns))
        self._hashed = sql.SQL(", ").join(sql.Identifier("t", name) for name in names)

    def read(self, low: _Bound = None, high: _Bound = None) -> Iterator[KeyRange]:
        """The ranges that the rows between two bounds make now, one transaction each."""
        while True:
            found = self._range(low, high)
            yield found
            if found.high == high:
                return
            low = found.high

    def same(self, known: KeyRange) -> bool:
        """Whether the keys of a range are those that it had, for all that their hash tells."""
        with self._transaction():
            return self._fingerprint(known.low, known.high) == known.fingerprint

    def _range(self, low: _Bound, high: _Bound) -> KeyRange:
        query = statement(
            "source/key_rows",
            columns=self._columns,
            places=sql.SQL(", ").join(sql.SQL("({})::text").format(column) for column in self._order),
            table=self._table,
            present=self._present,
            within=self._within(low, high),
            order=sql.SQL(", ").join(self._order),
            limit=sql.Literal(self._size),
        )
        with self._transaction():
            rows = self._server.rows(query)
            if len(rows) == self._size:
                places = rows[-1][-len(self._order) :]
                high = tuple((part or b"").decode() for part in places)
            fingerprint = self._fingerprint(low, high)
        keys = (self._plan.rows.render_key(row) for row in rows)
        digests = array("Q", (digest(key) for key in keys if key is not None))
        return KeyRange(low=low, high=high, fingerprint=fingerprint, digests=digests)

    def _fingerprint(self, low: _Bound, high: _Bound) -> str:
        query = statement(
            "source/key_hash",
            keys=self._hashed,
            table=self._table,
            present=self._present,
            within=self._within(low, high),
        )
        return str(self._server.scalar(query))

    def _within(self, low: _Bound, high: _Bound) -> sql.Composable:
        place = sql.SQL("({})").format(sql.SQL(", ").join(self._order))
        conditions: list[sql.Composable] = [sql.SQL("true")]
        if low is not None:
            conditions.append(sql.SQL("{} > ({})").format(place, _literals(low)))
        if high is not None:
            conditions.append(sql.SQL("{} <= ({})").format(place, _literals(high)))
        return sql.SQL(" AND ").join(conditions)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._server.poll(self._table, self._plan.oid, indexed=True) as at:
            if at.shape != self._plan.shape:
                raise TableReplaced(f"table {self._plan.qualified}: its columns or triggers have changed")
            yield


def _literals(bound: tuple[str, ...]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Literal, bound))
