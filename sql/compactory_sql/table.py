"""A table as the catalogue describes it: facts only, read by the connectors, compared with what adoption wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Column", "Index", "Member", "Table", "Trigger"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """``type`` is the base type where the column's is a domain; ``sql`` is the name, quoted where needed.

    ``ordered``: a btree index can hold it.
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
    """The table itself or one partition below it; ``parent`` is None for the table itself.

    ``sql`` and ``schema_sql`` are quoted where needed. ``partition_columns`` has None for an expression.
    """

    oid: int
    name: str
    schema_sql: str
    sql: str
    kind: str
    parent: int | None
    partition_columns: tuple[str | None, ...]

    @property
    def leaf(self) -> bool:
        """Whether it holds rows itself."""
        return self.kind != "p"


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """A trigger of ours. ``kind`` has the bits of ``pg_trigger.tgtype``; ``cloned``: it comes from the parent's.

    ``reads``: the columns that its condition names, in any order; empty without a condition.
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
    """``columns`` has None for an expression. ``predicate``: which rows it holds; None: all."""

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
    """``members`` begins with the table itself, parents before children. ``functions``: bodies of ours by name.

    ``obstacles``: what forbids adoption whatever the columns are. ``later``: triggers that fire after ours and could
    change what they stamped. ``foreign_xids``: rows stamped with ids that this server has not given yet, as after the
    restore of a dump.
    """

    members: tuple[Member, ...]
    columns: Mapping[str, Column]
    triggers: tuple[Trigger, ...]
    indexes: tuple[Index, ...]
    functions: Mapping[str, str]
    obstacles: tuple[str, ...]
    later: tuple[str, ...]
    foreign_xids: bool

    @property
    def root(self) -> Member:
        """The table itself."""
        return self.members[0]

    @property
    def partitioned(self) -> bool:
        """Whether rows are in partitions."""
        return not self.root.leaf

    @property
    def settings(self) -> str | None:
        """The adoption that the table's triggers describe, if it has any."""
        return next((t.settings for t in self.triggers if t.table == self.root.oid and t.settings), None)

    def trigger(self, member: Member, name: str) -> Trigger | None:
        """The trigger of this name on this member."""
        return next((t for t in self.triggers if t.table == member.oid and t.name == name), None)

    def children(self, member: Member) -> list[Member]:
        """The partitions directly below a member."""
        return [child for child in self.members if child.parent == member.oid]

    def indexes_of(self, member: Member) -> list[Index]:
        """The indexes of one member."""
        return [index for index in self.indexes if index.table == member.oid]
