"""The cases of a table's rows that its chain of transforms treats differently: a value is null, or is not.

A chain that treats all rows alike has one case, a leaf: its rows are written without a test. Pure; no bytes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import TypeAlias

from ..record.record import Cell, Constant, Node, Record, StructNode
from . import TransformError, TransformSpec

__all__ = ["Case", "Dropped", "Failed", "Fork", "Leaf", "case_without_nulls", "cases_of", "deciding_cells", "leaves"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """Rows that become ``record``."""

    record: Record


@dataclass(frozen=True, slots=True)
class Dropped:
    """Rows that a Filter drops."""

    alias: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Rows for which a transform fails; ``reason`` names it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Rows in which ``cell`` is null, and rows in which it is not."""

    cell: Cell
    null: Case
    not_null: Case


Case: TypeAlias = Leaf | Dropped | Failed | Fork


def cases_of(record: Record, specs: Sequence[TransformSpec]) -> Case:
    """Return the cases of rows that are ``record`` before these transforms."""
    for number, spec in enumerate(specs):
        try:
            node = _undecided(record, spec)
            if node is not None:
                remaining = specs[number:]
                return Fork(
                    node,
                    null=cases_of(_settled(record, node, null=True), remaining),
                    not_null=cases_of(_settled(record, node, null=False), remaining),
                )
            if not _applies(record, spec):
                continue
            changed = spec.transform.apply(record)
        except TransformError as error:
            return Failed(f"{spec.key}: {error}")
        if changed is None:
            return Dropped(spec.alias)
        record = changed
    return Leaf(record)


def leaves(case: Case) -> Iterator[Leaf]:
    """Yield every leaf, the usual one first."""
    if isinstance(case, Fork):
        yield from leaves(case.not_null)
        yield from leaves(case.null)
    elif isinstance(case, Leaf):
        yield case


def deciding_cells(case: Case) -> Iterator[Cell]:
    """Yield the cells that decide the case of a row."""
    if isinstance(case, Fork):
        yield case.cell
        yield from deciding_cells(case.not_null)
        yield from deciding_cells(case.null)


def case_without_nulls(case: Case) -> Leaf | Dropped | Failed:
    """Return the case of a row in which nothing is null."""
    while isinstance(case, Fork):
        case = case.not_null
    return case


def _undecided(record: Record, spec: TransformSpec) -> Cell | None:
    """Return the cell that decides, by being null, what ``spec`` does: first its predicate, then its transform."""
    if spec.predicate is not None:
        node = spec.predicate.undecided(record)
        if node is not None or not _applies(record, spec):
            return node
    return spec.transform.undecided(record)


def _applies(record: Record, spec: TransformSpec) -> bool:
    return spec.predicate is None or spec.predicate.test(record) != spec.negate


def _settled(record: Record, node: Cell, *, null: bool) -> Record:
    """Return ``record`` for rows in which ``node`` is null, or is not, in key and value."""
    settled: Node = replace(node, present=True)
    if null:
        settled = Constant(schema=node.schema, java=node.java, value=None)
    key = None if record.key is None else _exchanged(record.key, node, settled)
    return replace(record, key=key, value=_exchanged(record.value, node, settled))


def _exchanged(tree: Node, old: Node, new: Node) -> Node:
    if tree is old:
        return new
    if not isinstance(tree, StructNode):
        return tree
    members = tuple(_exchanged(member, old, new) for member in tree.members)
    return tree if all(map(is_, members, tree.members)) else replace(tree, members=members)
