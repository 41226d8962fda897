"""The plan of a table for a session: its columns, its topic, how a row becomes a record, how it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import LiteralString, cast

from psycopg import sql

from ..config.connector import ConnectorConfig
from ..config.selection import RelationKind
from ..mapping.row_plan import RowPlan
from ..offsets.offset import offset_key, query_key

__all__ = ["Reading", "TablePlan"]


class Reading(Enum):
    """The way in which new rows are found; the value describes it to people."""

    VERSIONS = "row versions: every committed change, whatever its timestamp"
    WHOLE = "the whole of it at each poll"
    CURSOR = "the last timestamp or id: a row that commits late is missed"

    @property
    def covered(self) -> bool:
        """True if no committed change of a table is missed (guarantee 8)."""
        return self is not Reading.CURSOR

    @property
    def sweeps(self) -> bool:
        """True if a first load shows everything that belongs in the topic, so that other keys may be removed."""
        return self in {Reading.VERSIONS, Reading.WHOLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """The plan of a table, a view or a query for a session."""

    connector: ConnectorConfig = field(repr=False)
    schema: str
    name: str
    oid: int
    topic: str
    rows: RowPlan
    timestamps: tuple[str, ...]
    """The first that is not NULL counts; empty where the mode has none."""
    incrementing: str | None
    key_types: tuple[str, ...]
    shape: str
    tie_breakers: tuple[str, ...] = ()
    """Columns that make the order of emission total after timestamp and id: the primary key."""
    reading: Reading = Reading.VERSIONS
    kind: RelationKind = RelationKind.TABLE
    initial: str | None = None
    """``timestamp.initial`` as a timestamp of the table: a first load takes rows from it on."""
    zoned: bool = False
    """The timestamp columns are ``timestamptz``: points in time whatever the zone."""
    adopted: bool = False
    restamped: bool = False
    """A trigger that fires after ours may change its stamps."""
    notifies: bool = False
    sweeps: bool = True
    """After a first load keys that the table lacks are removed from the topic."""
    sweeps_always: bool = False
    """They are after every load: mode bulk with ``compactory.bulk.deletes``."""
    warnings: tuple[str, ...] = ()
    load_warnings: tuple[str, ...] = ()
    """Warnings about a first load alone."""

    @property
    def keyless(self) -> bool:
        """True if records have no key; the topic keeps them by age or size."""
        return not self.rows.key_columns

    @property
    def stamped(self) -> bool:
        """True if ``updated_xid`` tells which transaction wrote a row; else ``xmin`` does."""
        return self.adopted and not self.restamped

    @property
    def appends(self) -> bool:
        """True if only rows with higher ids are sent, and no changes of others: mode incrementing."""
        return self.reading is Reading.CURSOR and not self.timestamps

    @property
    def sends_tombstones(self) -> bool:
        """True unless ``compactory.soft.delete.mode`` asks for the value of a deactivated row."""
        return self.connector.soft_delete is None or self.connector.soft_delete.tombstone

    @property
    def qualified(self) -> str:
        """``schema.table`` for people; ``query`` for a query."""
        return "query" if self.kind is RelationKind.QUERY else f"{self.schema}.{self.name}"

    def full_name(self, database: str) -> str:
        """Return ``db.schema.table``, by which offsets and operators name it; ``query`` for a query."""
        return "query" if self.kind is RelationKind.QUERY else f"{database}.{self.schema}.{self.name}"

    def offset_key(self, database: str) -> bytes:
        connector = self.connector.name
        return (
            query_key(connector)
            if self.kind is RelationKind.QUERY
            else offset_key(connector, database, self.schema, self.name)
        )

    @property
    def label(self) -> str:
        """The beginning of a message about it."""
        return self.qualified if self.kind is RelationKind.QUERY else f"table {self.qualified}"

    @property
    def order(self) -> tuple[str, ...]:
        """Names of what rows are ordered by, for people: the timestamp, the id, the primary key."""
        names = [" or ".join(self.timestamps)] if self.timestamps else []
        names += [self.incrementing] if self.incrementing else []
        return (*names, *(name for name in self.tie_breakers if name != self.incrementing))

    def columns(self) -> sql.Composable:
        """Return the columns of ``rows``, as a poll selects them."""
        return sql.SQL(", ").join(map(self.column, self.rows.columns))

    def column(self, name: str) -> sql.Composable:
        """Return one column of ``rows``, as a poll selects it."""
        column = sql.Identifier("t", name)
        return sql.SQL("pg_catalog.to_jsonb({})::text").format(column) if name in self.rows.json_columns else column

    def relation(self) -> sql.Composable:
        """Return what follows FROM, to be called ``t``. A query may end in a comment, hence the newline."""
        if self.connector.query is None:
            return sql.Identifier(self.schema, self.name)
        return sql.SQL("({}\n)").format(_verbatim(self.connector.query))

    def suffix(self) -> sql.Composable:
        """Return ``query.suffix``, to stand at the end of a query."""
        return _verbatim(self.connector.suffix)


def _verbatim(text: str) -> sql.Composable:
    """Return the user's own SQL."""
    return sql.SQL(cast("LiteralString", text))  # type: ignore[redundant-cast]  # mypy takes it for str
