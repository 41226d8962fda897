"""The interface of transforms: options read once, then one step of the chain's compilation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..record.record import Cell, Constant, Java, Node, Record, StructNode
from ..record.schema import Field, Schema, Type
from ..setting import boolean, nearest, option

__all__ = [
    "Side",
    "Sided",
    "Transform",
    "TransformError",
    "absent",
    "is_null_struct",
    "member_of",
    "missing",
    "no_defaults",
    "null_of",
    "nullable",
    "struct_of",
    "warned",
]


def no_defaults() -> Any:
    """The option of every class that reads fields: without effect here."""
    return option("columns have no default in a schema", "true", boolean)


class TransformError(ValueError):
    """A transform does not fit the record it gets: the text names the missing field and the ones that exist."""


@dataclass(frozen=True, slots=True)
class Side:
    """Key or value: the half of the record that the ``$Key`` or ``$Value`` form of a transform works on."""

    name: str

    def of(self, record: Record) -> Node | None:
        """The half of ``record`` that it names."""
        return record.key if self.name == "Key" else record.value

    def put(self, record: Record, node: Node) -> Record:
        """``record`` with this half replaced."""
        return replace(record, key=node) if self.name == "Key" else replace(record, value=node)

    def struct(self, record: Record, doing: str) -> StructNode:
        """The half, which must be a struct that is not null; ``doing`` says what needs one."""
        half = self.of(record)
        if isinstance(half, StructNode):
            return half
        what = "is missing" if half is None else "is null" if absent(half) else "is not a struct"
        raise TransformError(f"the {self} {what}, but {doing} needs a struct")

    def __str__(self) -> str:
        return self.name.lower()


class Transform(ABC):
    """One transform, a dataclass whose fields are its options, read. Immutable.

    Its constructor raises ValueError for options that contradict each other.
    """

    __slots__ = ()

    def undecided(self, record: Record) -> Node | None:
        """A node whose being null decides what the transform does, where it can be null; the chain then looks at both
        cases apart.
        """
        del record
        return None

    @abstractmethod
    def apply(self, record: Record) -> Record | None:
        """The record after this transform; None: it is dropped. Raises TransformError when the record does not fit."""


@dataclass(frozen=True, slots=True)
class Sided(Transform):
    """A transform in a ``$Key`` and a ``$Value`` form that treats a null half in a way of its own."""

    side: Side

    def undecided(self, record: Record) -> Node | None:
        """The half, where it can be null."""
        return nullable(self.side.of(record))


def nullable(node: Node | None) -> Node | None:
    """``node`` if it is null in some rows and not in others."""
    if isinstance(node, Cell):
        return node if node.schema.optional and not node.present else None
    return node if isinstance(node, StructNode) and node.when is not None else None


def absent(node: Node | None) -> bool:
    """Whether there is no such half, or it is null in every row."""
    return node is None or (isinstance(node, Constant) and node.value is None)


def is_null_struct(node: Node) -> bool:
    """Whether ``node`` is a struct that is null in every row."""
    return absent(node) and node.schema.type is Type.STRUCT


def null_of(schema: Schema) -> Constant:
    """Null under a schema."""
    return Constant(schema=schema, java=Java.STRING, value=None)


def member_of(side: Side, half: StructNode, name: str) -> Node:
    """The member called ``name``. Raises TransformError where there is none."""
    node = half.member(name)
    if node is None:
        raise missing(side, half.schema, name)
    return node


def missing(side: Side, schema: Schema, name: str) -> TransformError:
    """The error of a field that a struct does not have."""
    there = [item.name for item in schema.fields]
    return TransformError(f"the {side} has no field {name}{nearest(name, there)} (it has {', '.join(there)})")


def struct_of(basics: Schema, members: Iterable[tuple[str, Node]], when: Cell | None = None) -> StructNode:
    """A struct of these members with name, version, doc, parameters and optionality of ``basics``.

    Raises TransformError for two members of one name, which Connect's SchemaBuilder refuses too.
    """
    named: Sequence[tuple[str, Node]] = tuple(members)
    counted = Counter(name for name, _ in named)
    if twice := [name for name, count in counted.items() if count > 1]:
        raise TransformError(f"there would be more than one field {twice[0]}")
    fields = tuple(Field(name, node.schema) for name, node in named)
    return StructNode(replace(basics, type=Type.STRUCT, fields=fields), tuple(node for _, node in named), when)


def warned(record: Record, name: str, half: StructNode, wanted: Iterable[str], side: Side) -> Record:
    """``record`` with a warning for every wanted field that is not there, which the class passes over in silence."""
    there = [item.name for item in half.schema.fields]
    lacking = [field for field in wanted if field not in there]
    texts = (f"{name} changes nothing: the {side} has no field {field}{nearest(field, there)}" for field in lacking)
    return replace(record, warnings=(*record.warnings, *texts))
