"""The indexes of an adopted table. One of the user's own serves as well; a broken one of ours is built anew.

On a partitioned table CONCURRENTLY is not possible: the index is made on the parent alone, built on every leaf, and
the leaves' are attached. The parent's becomes valid with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compactory_sql.adoption import XID_COLUMN, Adoption
from compactory_sql.naming import made_name, quoted
from compactory_sql.step import Phase, Step
from compactory_sql.table import Index, Member, Table

__all__ = ["active_predicates", "index_steps", "spans_partitions"]

# Predicates, as the server spells them, of indexes that hold all active rows; ours has the first. NULL is active.
_ACTIVE = ("(%s IS NOT FALSE)",)
_ACTIVE_NOT_NULL = ("(%s IS TRUE)", "%s", "(%s = true)", *_ACTIVE)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    suffix: str
    purpose: str
    columns: tuple[str, ...]
    unique: bool = False
    predicates: tuple[str, ...] = ()

    def fits(self, index: Index) -> bool:
        """Whether an index serves the purpose, once it is valid."""
        if self.unique:
            within = {*index.columns} <= {*self.columns} and index.unique
            return within and index.predicate in {None, *self.predicates}
        return index.columns[: len(self.columns)] == self.columns and index.predicate is None

    def name(self, member: Member) -> str:
        return made_name(member.name, self.suffix)

    def sql_name(self, member: Member) -> str:
        """The name with the schema."""
        return f"{member.schema_sql}.{quoted(self.name(member))}"


def index_steps(table: Table, adoption: Adoption) -> Iterator[Step]:
    """The missing indexes: the cursor of adopted tables, the connector's own order, one active row a key."""
    active = table.columns[adoption.active] if adoption.active is not None else None
    xid = _Wanted(suffix="compactory_xid", purpose="finding what changed", columns=(XID_COLUMN,))
    order = _Wanted(suffix="compactory_order", purpose="reading in order", columns=(adoption.timestamp, adoption.id))
    key = _Wanted(
        suffix="compactory_key",
        purpose="one active row a key" if adoption.active else "one row a key",
        columns=adoption.key,
        unique=True,
        predicates=() if active is None else active_predicates(active.sql, not_null=active.not_null),
    )
    builder = _Builder(table, adoption)
    for wanted in (xid, order, key):
        yield from builder.steps(wanted)


def spans_partitions(table: Table, adoption: Adoption) -> bool:
    """Whether Postgres can't keep the key unique in the whole table, because partitions are made by other columns."""
    by = {column for member in table.members if not member.leaf for column in member.partition_columns}
    return not by <= {*adoption.key}


@dataclass(frozen=True)
class _Builder:
    table: Table
    adoption: Adoption

    def steps(self, wanted: _Wanted) -> Iterator[Step]:
        root = self.table.root
        if wanted.unique and spans_partitions(self.table, self.adoption):
            for member in self.table.members:
                if member.leaf:
                    yield from self._leaf(wanted, member)
        elif root.leaf:
            yield from self._leaf(wanted, root)
        elif not any(index.valid and wanted.fits(index) for index in self.table.indexes_of(root)):
            yield from self._parent(wanted, root)

    def _leaf(self, wanted: _Wanted, member: Member, *, joined: bool = False) -> Iterator[Step]:
        """An index that is built on its own; ``joined``: it has to be free to be attached to the parent's."""
        indexes = self.table.indexes_of(member)
        fitting = [index for index in indexes if index.valid and wanted.fits(index)]
        if any(index.parent is None or not joined for index in fitting):
            return
        name = wanted.name(member)
        leftover = next((index for index in indexes if index.name == name and index.parent is None), None)
        drop = [f"DROP INDEX CONCURRENTLY {leftover.sql}"] if leftover else []
        yield Step(
            phase=Phase.BUILD,
            title=f"{'rebuild' if leftover else 'build'} index {quoted(name)} on {member.sql}",
            problem=_lacking(wanted, member),
            sql=(*drop, self._create(wanted, member, "INDEX CONCURRENTLY", member.sql)),
            undo=f"DROP INDEX CONCURRENTLY IF EXISTS {wanted.sql_name(member)}",
            unique=wanted.unique,
        )

    def _parent(self, wanted: _Wanted, parent: Member) -> Iterator[Step]:
        """An index of a partitioned table: the parent's first, then the children's, then both are joined."""
        own = next((index for index in self.table.indexes_of(parent) if wanted.fits(index)), None)
        if own is None:
            yield self._hull(wanted, parent)
        for child in self.table.children(parent):
            indexes = self.table.indexes_of(child)
            attached = [index for index in indexes if own is not None and index.parent == own.oid]
            if child.leaf and not attached:
                yield from self._leaf(wanted, child, joined=True)
            elif not child.leaf:
                yield from self._parent(wanted, child)
            if not attached:
                yield self._attach(wanted, parent, own, child)

    def _hull(self, wanted: _Wanted, parent: Member) -> Step:
        """The index of a partitioned table, empty: invalid until every partition's is attached."""
        name = wanted.name(parent)
        other = next((index for index in self.table.indexes_of(parent) if index.name == name), None)
        drop = [f"DROP INDEX {other.sql}"] if other else []
        return Step(
            phase=Phase.CHANGE,
            title=f"create index {quoted(name)} on {parent.sql} alone",
            problem=_lacking(wanted, parent),
            sql=(*drop, self._create(wanted, parent, "INDEX", f"ONLY {parent.sql}")),
        )

    def _attach(self, wanted: _Wanted, parent: Member, own: Index | None, child: Member) -> Step:
        free = [i for i in self.table.indexes_of(child) if wanted.fits(i) and i.parent is None]
        usable = next((i.sql for i in free if i.valid or not child.leaf), wanted.sql_name(child))
        above = own.sql if own is not None else wanted.sql_name(parent)
        return Step(
            phase=Phase.ATTACH,
            title=f"attach index {usable} to {above}",
            problem=f"{child.sql}: its index for {wanted.purpose} is not attached to that of {parent.sql}",
            sql=(f"ALTER INDEX {above} ATTACH PARTITION {usable}",),
        )

    def _create(self, wanted: _Wanted, member: Member, kind: str, target: str) -> str:
        columns = ", ".join(self.table.columns[name].sql if name != XID_COLUMN else name for name in wanted.columns)
        unique = "UNIQUE " if wanted.unique else ""
        where = f" WHERE {wanted.predicates[0]}" if wanted.predicates else ""
        return f"CREATE {unique}{kind} {quoted(wanted.name(member))} ON {target} ({columns}){where}"


def active_predicates(column: str, *, not_null: bool) -> tuple[str, ...]:
    """Return the predicates of indexes that hold every row whose column is not false. The name is quoted as needed."""
    return tuple(form % column for form in (_ACTIVE_NOT_NULL if not_null else _ACTIVE))


def _lacking(wanted: _Wanted, member: Member) -> str:
    return f"{member.sql}: no valid index for {wanted.purpose} ({', '.join(wanted.columns)})"
