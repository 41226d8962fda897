"""A table as the catalogue describes it. The connectors read it; :mod:`planning` compares it with an adoption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Column", "Index", "Member", "Table", "Trigger"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    ``sql``: the name, quoted where needed. ``type``: for a domain its base type. ``ordered``: btree can index it.
    """

    name: str
    sql: str
    type: str
    not_null: bool
    generated: bool
    ordered: bool
    default: str | None


@dataclass(frozen=True, kw_only=True)
class Member:
    """The table itself (``parent`` is None) or one partition of it.

    ``sql`` and ``schema_sql`` are quoted where needed. ``partition_columns``: columns of its partition key, None for an
    expression; empty for a leaf.
    """

    oid: int
    name: str
    schema_sql: str
    sql: str
    kind: str
    parent: int | None
    partition_columns: tuple[str | None, ...]

    @property
    def is_leaf(self) -> bool:
        """Return True if the member stores rows itself."""
        return self.kind != "p"


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """A trigger of Compactory on one member.

    ``kind``: the bits of ``pg_trigger.tgtype``. ``cloned``: Postgres cloned it from the parent's trigger. ``reads``:
    columns in its condition, in any order; empty without a condition.
    """

    table: int
    name: str
    kind: int
    function: str
    settings: str | None
    enabled: str
    cloned: bool
    reads: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Index:
    """A btree index on one member.

    ``columns`` has None for an expression. ``predicate``: condition of the rows in the index; None: all rows.
    """

    table: int
    oid: int
    name: str
    sql: str
    columns: tuple[str | None, ...]
    unique: bool
    valid: bool
    predicate: str | None
    parent: int | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its partitions.

    ``members``: the table itself, then partitions, parents before children. ``functions``: bodies of Compactory's
    functions by name. ``obstacles``: reasons that forbid adoption with any options. ``later_triggers``: triggers of
    others that fire after Compactory's and can change the stamps. ``foreign_xids``: rows have transaction ids that
    this server has not assigned yet, as after the restore of a dump.
    """

    members: tuple[Member, ...]
    columns: Mapping[str, Column]
    triggers: tuple[Trigger, ...]
    indexes: tuple[Index, ...]
    functions: Mapping[str, str]
    obstacles: tuple[str, ...]
    later_triggers: tuple[str, ...]
    foreign_xids: bool

    @property
    def root(self) -> Member:
        """Return the table itself."""
        return self.members[0]

    @property
    def is_partitioned(self) -> bool:
        """Return True if partitions store the rows."""
        return not self.root.is_leaf

    @property
    def settings(self) -> str | None:
        """Return the argument of the table's triggers, which describes its adoption; None without triggers."""
        return next((t.settings for t in self.triggers if t.table == self.root.oid and t.settings), None)

    def trigger(self, member: Member, name: str) -> Trigger | None:
        """Return the trigger of this name on this member, or None."""
        return next((t for t in self.triggers if t.table == member.oid and t.name == name), None)

    def children(self, member: Member) -> list[Member]:
        """Return the partitions directly below a member."""
        return [child for child in self.members if child.parent == member.oid]

    def indexes_of(self, member: Member) -> list[Index]:
        """Return the indexes of one member."""
        return [index for index in self.indexes if index.table == member.oid]
