"""The cases of a table's rows that its chain of transforms tells apart: whether a value is null, as things stand.

A chain without such a case is one leaf, and its rows are written without asking anything. Pure; nothing here knows
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import TypeAlias

from ..record.record import Cell, Constant, Java, Node, Record, StructNode
from . import TransformError, TransformSpec

__all__ = ["Case", "Dropped", "Failed", "Fork", "Leaf", "grow", "leaves", "tested", "usual"]


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
    """Rows that a transform can't take; ``reason`` names it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Rows in which ``cell`` is null, and the others."""

    cell: Cell
    null: Case
    other: Case


Case: TypeAlias = Leaf | Dropped | Failed | Fork


def grow(record: Record, specs: Sequence[TransformSpec]) -> Case:
    """The cases of rows that are ``record`` before these transforms."""
    for number, spec in enumerate(specs):
        try:
            node = _undecided(record, spec)
            if node is not None:
                cell = node if isinstance(node, Cell) else _when(node)
                left = specs[number:]
                return Fork(
                    cell,
                    null=grow(_settled(record, node, null=True), left),
                    other=grow(_settled(record, node, null=False), left),
                )
            if not _applies(record, spec):
                continue
            after = spec.transform.apply(record)
        except TransformError as error:
            return Failed(f"{spec.place}: {error}")
        if after is None:
            return Dropped(spec.alias)
        record = after
    return Leaf(record)


def leaves(case: Case) -> Iterator[Leaf]:
    """Every leaf, the usual one first."""
    if isinstance(case, Fork):
        yield from leaves(case.other)
        yield from leaves(case.null)
    elif isinstance(case, Leaf):
        yield case


def tested(case: Case) -> Iterator[Cell]:
    """The cells that are looked at to tell the cases apart."""
    if isinstance(case, Fork):
        yield case.cell
        yield from tested(case.other)
        yield from tested(case.null)


def usual(case: Case) -> Leaf | Dropped | Failed:
    """The case of a row in which nothing is null."""
    while isinstance(case, Fork):
        case = case.other
    return case


def _undecided(record: Record, spec: TransformSpec) -> Node | None:
    """The node whose being null decides what ``spec`` does: of its predicate first, then of its transform."""
    if spec.predicate is not None:
        node = spec.predicate.undecided(record)
        if node is not None or not _applies(record, spec):
            return node
    return spec.transform.undecided(record)


def _applies(record: Record, spec: TransformSpec) -> bool:
    return spec.predicate is None or spec.predicate.test(record) != spec.negate


def _when(node: Node) -> Cell:
    assert isinstance(node, StructNode)
    assert node.when is not None
    return node.when


def _settled(record: Record, node: Node, *, null: bool) -> Record:
    """``record`` where ``node`` is known to be null or not to be, wherever it stands."""
    known = _known(node, null=null)
    key = None if record.key is None else _exchanged(record.key, node, known)
    return replace(record, key=key, value=_exchanged(record.value, node, known))


def _known(node: Node, *, null: bool) -> Node:
    if null:
        return Constant(schema=node.schema, java=Java.STRING if isinstance(node, StructNode) else node.java, value=None)
    if isinstance(node, StructNode):
        return replace(node, when=None)
    assert isinstance(node, Cell)
    return replace(node, present=True)


def _exchanged(tree: Node, old: Node, new: Node) -> Node:
    if tree is old:
        return new
    if not isinstance(tree, StructNode):
        return tree
    members = tuple(_exchanged(member, old, new) for member in tree.members)
    return tree if all(map(is_, members, tree.members)) else replace(tree, members=members)
