"""The record keys of a table by ranges of its primary key: hashed by Postgres, fetched if the hash has changed.

Each range is read in a short transaction of its own, so that no snapshot is held for long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from ..planning.table_plan import TablePlan
from ..polling.conditions import Conditions
from ..polling.living_rows import columns_of_keys, keys_of_rows, snapshot_of
from ..postgres.server import Server, statement

__all__ = ["RANGE_ROWS", "KeyRange", "KeyRanges", "living_keys"]

RANGE_ROWS = 10_000
"""Rows of a new range."""

_Bound = tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """The rows after ``low`` up to ``high`` in the order of the primary key; None: from the first, to the last.

    ``fingerprint`` is Postgres' own hash of their keys, ``numbers`` are those of `comparison.KEYS`, in 8 bytes each.
    """

    low: _Bound
    high: _Bound
    fingerprint: str
    numbers: array[int]


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
        """Yield the ranges of the rows between two bounds, each in its own transaction."""
        while True:
            key_range = self._range(low, high)
            yield key_range
            if key_range.high == high:
                return
            low = key_range.high

    def is_unchanged(self, former: KeyRange) -> bool:
        """Return True if the keys of a range have the same hash as when it was read."""
        with snapshot_of(self._server, self._plan, indexed=True):
            return self._fingerprint(former.low, former.high) == former.fingerprint

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
        with snapshot_of(self._server, self._plan, indexed=True):
            rows = self._server.rows(query)
            if len(rows) == self._size:
                places = rows[-1][-len(self._order) :]
                high = tuple((part or b"").decode() for part in places)
            fingerprint = self._fingerprint(low, high)
        keys = map(self._plan.rows.render_key, rows)
        numbers = array("q", (hash(key) for key in keys if key is not None))
        return KeyRange(low=low, high=high, fingerprint=fingerprint, numbers=numbers)

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


def _literals(bound: tuple[str, ...]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Literal, bound))


def living_keys(server: Server, plan: TablePlan) -> Iterator[list[bytes]]:
    """Yield the keys of all rows that belong in the topic, in one snapshot, in chunks.

    Raises psycopg.Error, RowError, and TableReplaced if the table was replaced.
    """
    with snapshot_of(server, plan, changed=True):
        yield from keys_of_rows(server, plan, "keys", Conditions(plan).present())
