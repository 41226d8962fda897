"""The plan of a table for a session: its columns, its topic, how a row becomes a record, how it is read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import LiteralString, cast

from psycopg import sql

from ..mapping.chain import RowPlan
from ..offsets.offset_keys import offset_key, query_key

__all__ = ["Reading", "TablePlan", "key_of"]


class Reading(Enum):
    """How new rows are found; the value describes it to people."""

    VERSIONS = "row versions: every committed change, whatever its timestamp"
    WHOLE = "the whole of it at each poll"
    CURSOR = "the last timestamp or id: a row that commits late is missed"

    @property
    def covered(self) -> bool:
        """Whether no committed change is missed (guarantee 8), in a table."""
        return self is not Reading.CURSOR

    @property
    def sweeps(self) -> bool:
        """Whether a first load shows everything that belongs in the topic, so that the rest may be removed."""
        return self in {Reading.VERSIONS, Reading.WHOLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """The plan of a table, a view or a query for a session."""

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
    """Columns that make the order of emission total behind timestamp and id: the primary key."""
    reading: Reading = Reading.VERSIONS
    kind: str = "r"
    """``pg_class.relkind``, or q for a query."""
    query: str | None = None
    suffix: str = ""
    """``query.suffix``: text behind the generated query."""
    serializable: bool = False
    """``transaction.isolation.mode=SERIALIZABLE``."""
    since: str | None = None
    """``timestamp.initial``: a first load takes rows from this moment on, in the text form of Postgres."""
    delay_ms: int = 0
    """``timestamp.delay.interval.ms``; for the reading PLACE."""
    zone: str = "UTC"
    """``db.timezone``: the zone of local times of ``timestamp`` columns in an offset."""
    zoned: bool = False
    """The timestamp columns are ``timestamptz``: moments whatever the zone."""
    soft_delete: str | None = None
    tombstones: bool = True
    tolerant: bool = False
    """``errors.tolerance=all``: rows that can't be converted are skipped."""
    keyless: bool = False
    """Records have no key; the topic keeps them by age or size."""
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
    def stamped(self) -> bool:
        """Whether ``updated_xid`` tells which transaction wrote a row; else ``xmin`` does."""
        return self.adopted and not self.restamped

    @property
    def appends(self) -> bool:
        """True if only rows with higher ids are sent, and no changes of others: mode incrementing."""
        return self.reading is Reading.CURSOR and not self.timestamps

    @property
    def qualified(self) -> str:
        """``schema.table`` for people; ``query`` for a query."""
        return "query" if self.query is not None else f"{self.schema}.{self.name}"

    def full_name(self, database: str) -> str:
        """``db.schema.table``, by which offsets and operators name it; ``query`` for a query."""
        return "query" if self.query is not None else f"{database}.{self.schema}.{self.name}"

    @property
    def label(self) -> str:
        """The beginning of a message about it."""
        return self.qualified if self.query is not None else f"table {self.qualified}"

    @property
    def timestamp(self) -> str:
        """The first timestamp column; empty where the mode has none."""
        return self.timestamps[0] if self.timestamps else ""

    @property
    def order(self) -> tuple[str, ...]:
        """Names of what rows are ordered by, for people: the timestamp, the id, the primary key."""
        named = [" or ".join(self.timestamps)] if self.timestamps else []
        named += [self.incrementing] if self.incrementing else []
        return (*named, *(tie for tie in self.tie_breakers if tie != self.incrementing))

    def relation(self) -> sql.Composable:
        """The relation behind FROM, to be called ``t``. A query may end in a comment, hence the line break."""
        if self.query is None:
            return sql.Identifier(self.schema, self.name)
        return sql.SQL("({}\n)").format(_verbatim(self.query))

    def suffix_text(self) -> sql.Composable:
        """``query.suffix``, to stand at the end of a query."""
        return _verbatim(self.suffix)


def key_of(connector: str, database: str, plan: TablePlan) -> bytes:
    """The key of the offset of a table or query."""
    return query_key(connector) if plan.query is not None else offset_key(connector, database, plan.schema, plan.name)


def _verbatim(text: str) -> sql.Composable:
    """The user's own SQL."""
    return sql.SQL(cast("LiteralString", text))  # type: ignore[redundant-cast]  # mypy takes it for str
