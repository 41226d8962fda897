"""The indexes of an adopted table. A fitting index of the user is used; an invalid one of Compactory is built again.

A partitioned table allows no CONCURRENTLY. So the index is created on the parent alone, built on each leaf, and the
indexes of the leaves are attached. The parent's index becomes valid with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compactory_sql.adoption import XID_COLUMN, Adoption
from compactory_sql.naming import object_name, quoted
from compactory_sql.step import Step, StepGroup
from compactory_sql.table import Index, Member, Table

__all__ = ["active_predicates", "index_steps", "spans_partitions"]

# Predicates of indexes that hold all active rows, as the server spells them; a new index has the first. NULL is active.
_ACTIVE = ("(%s IS NOT FALSE)",)
_ACTIVE_NOT_NULL = ("(%s IS TRUE)", "%s", "(%s = true)", *_ACTIVE)


@dataclass(frozen=True, kw_only=True)
class _IndexSpec:
    """An index that an adopted table needs. ``purpose`` is for messages; ``predicates``: those that fit."""

    suffix: str
    purpose: str
    columns: tuple[str, ...]
    unique: bool = False
    predicates: tuple[str, ...] = ()

    def fits(self, index: Index) -> bool:
        """Return True if an index can be used, once it is valid."""
        if self.unique:
            return index.unique and {*index.columns} <= {*self.columns} and index.predicate in {None, *self.predicates}
        return index.columns[: len(self.columns)] == self.columns and index.predicate is None

    def name(self, member: Member) -> str:
        return object_name(member.name, self.suffix)

    def sql_name(self, member: Member) -> str:
        """Return the name with the schema, quoted."""
        return f"{member.schema_sql}.{quoted(self.name(member))}"


def index_steps(table: Table, adoption: Adoption) -> Iterator[Step]:
    """Return steps for the missing indexes: on ``updated_xid``, on timestamp and id, and on the key (unique)."""
    active = table.columns[adoption.active] if adoption.active is not None else None
    xid = _IndexSpec(suffix="compactory_xid", purpose="finding changed rows", columns=(XID_COLUMN,))
    order = _IndexSpec(suffix="compactory_order", purpose="reading in order", columns=(adoption.timestamp, adoption.id))
    key = _IndexSpec(
        suffix="compactory_key",
        purpose="one active row for each key" if adoption.active else "one row for each key",
        columns=adoption.key,
        unique=True,
        predicates=() if active is None else active_predicates(active.sql, not_null=active.not_null),
    )
    planner = _Planner(table, adoption)
    for spec in (xid, order, key):
        yield from planner.steps(spec)


def spans_partitions(table: Table, adoption: Adoption) -> bool:
    """Return True if Postgres can't keep the key unique in the whole table: the partition key has other columns."""
    partition_columns = {
        column for member in table.members if not member.is_leaf for column in member.partition_columns
    }
    return not partition_columns <= {*adoption.key}


@dataclass(frozen=True)
class _Planner:
    table: Table
    adoption: Adoption

    def steps(self, spec: _IndexSpec) -> Iterator[Step]:
        root = self.table.root
        if spec.unique and spans_partitions(self.table, self.adoption):
            for member in self.table.members:
                if member.is_leaf:
                    yield from self._leaf(spec, member)
        elif root.is_leaf:
            yield from self._leaf(spec, root)
        elif not any(index.valid and spec.fits(index) for index in self.table.indexes_of(root)):
            yield from self._parent(spec, root)

    def _leaf(self, spec: _IndexSpec, member: Member, *, must_be_free: bool = False) -> Iterator[Step]:
        """Yield the step that builds the index of a leaf, if it lacks one (that is free to be attached)."""
        indexes = self.table.indexes_of(member)
        fitting = [index for index in indexes if index.valid and spec.fits(index)]
        if any(index.parent is None or not must_be_free for index in fitting):
            return
        name = spec.name(member)
        leftover = next((index for index in indexes if index.name == name and index.parent is None), None)
        drop = [f"DROP INDEX CONCURRENTLY {leftover.sql}"] if leftover else []
        yield Step(
            group=StepGroup.BUILD,
            title=f"{'rebuild' if leftover else 'build'} index {quoted(name)} on {member.sql}",
            problem=_problem(spec, member),
            sql=(*drop, self._create(spec, member, "INDEX CONCURRENTLY", member.sql)),
            undo=f"DROP INDEX CONCURRENTLY IF EXISTS {spec.sql_name(member)}",
            unique=spec.unique,
        )

    def _parent(self, spec: _IndexSpec, parent: Member) -> Iterator[Step]:
        """Yield steps for a partitioned table: create the parent's index, then the children's, then attach them."""
        parent_index = next((index for index in self.table.indexes_of(parent) if spec.fits(index)), None)
        if parent_index is None:
            yield self._parent_alone(spec, parent)
        for child in self.table.children(parent):
            indexes = self.table.indexes_of(child)
            attached = [index for index in indexes if parent_index is not None and index.parent == parent_index.oid]
            if child.is_leaf and not attached:
                yield from self._leaf(spec, child, must_be_free=True)
            elif not child.is_leaf:
                yield from self._parent(spec, child)
            if not attached:
                yield self._attach(spec, parent, parent_index, child)

    def _parent_alone(self, spec: _IndexSpec, parent: Member) -> Step:
        """Return the step that creates the parent's index alone: invalid until all partitions' are attached."""
        name = spec.name(parent)
        same_named = next((index for index in self.table.indexes_of(parent) if index.name == name), None)
        drop = [f"DROP INDEX {same_named.sql}"] if same_named else []
        return Step(
            group=StepGroup.CHANGE,
            title=f"create index {quoted(name)} on {parent.sql} alone",
            problem=_problem(spec, parent),
            sql=(*drop, self._create(spec, parent, "INDEX", f"ONLY {parent.sql}")),
        )

    def _attach(self, spec: _IndexSpec, parent: Member, parent_index: Index | None, child: Member) -> Step:
        free_indexes = [i for i in self.table.indexes_of(child) if spec.fits(i) and i.parent is None]
        usable = next((i.sql for i in free_indexes if i.valid or not child.is_leaf), spec.sql_name(child))
        parent_sql = parent_index.sql if parent_index is not None else spec.sql_name(parent)
        return Step(
            group=StepGroup.ATTACH,
            title=f"attach index {usable} to {parent_sql}",
            problem=f"{child.sql}: its index for {spec.purpose} is not attached to that of {parent.sql}",
            sql=(f"ALTER INDEX {parent_sql} ATTACH PARTITION {usable}",),
        )

    def _create(self, spec: _IndexSpec, member: Member, kind: str, target: str) -> str:
        columns = ", ".join(self.table.columns[name].sql if name != XID_COLUMN else name for name in spec.columns)
        unique = "UNIQUE " if spec.unique else ""
        where = f" WHERE {spec.predicates[0]}" if spec.predicates else ""
        return f"CREATE {unique}{kind} {quoted(spec.name(member))} ON {target} ({columns}){where}"


def active_predicates(column: str, *, not_null: bool) -> tuple[str, ...]:
    """Return the predicates of indexes that hold every row whose column is not false. ``column`` is a quoted name."""
    return tuple(form % column for form in (_ACTIVE_NOT_NULL if not_null else _ACTIVE))


def _problem(spec: _IndexSpec, member: Member) -> str:
    return f"{member.sql}: no valid index for {spec.purpose} ({', '.join(spec.columns)})"
