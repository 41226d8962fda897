"""The interface of transforms, and what they share: a transform turns the record of a table into another one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..record.record import Cell, Constant, Node, Record, StructNode
from ..record.schema import Field, Schema, Type
from ..setting import boolean, nearest, option

__all__ = [
    "Side",
    "Sided",
    "Transform",
    "TransformError",
    "absent",
    "change_fields",
    "missing",
    "no_defaults",
    "nullable",
    "struct_of",
    "warn_of_missing",
]


def no_defaults() -> Any:
    """Return the option of every class that reads fields, which has no effect here."""
    return option("columns have no default in a schema", "true", boolean)


class TransformError(ValueError):
    """A transform does not fit its record: the text names the missing field and the existing ones."""


@dataclass(frozen=True, slots=True)
class Side:
    """Key or value: the half of the record that the ``$Key`` or ``$Value`` form of a transform works on."""

    name: str

    def of(self, record: Record) -> Node | None:
        """Return this half of ``record``; None for a record without a key."""
        return record.key if self.name == "Key" else record.value

    def put(self, record: Record, node: Node) -> Record:
        """Return ``record`` with this half replaced."""
        return replace(record, key=node) if self.name == "Key" else replace(record, value=node)

    def struct(self, record: Record, purpose: str) -> StructNode:
        """Return this half, a struct. Raises TransformError for another one; ``purpose`` says what needs a struct."""
        half = self.of(record)
        if isinstance(half, StructNode):
            return half
        problem = "is missing" if half is None else "is null" if absent(half) else "is not a struct"
        raise TransformError(f"the {self} {problem}, but {purpose} needs a struct")

    def __str__(self) -> str:
        return self.name.lower()


class Transform(ABC):
    """A transform: a frozen dataclass whose fields are its options.

    The constructor raises ValueError for options that contradict each other.
    """

    __slots__ = ()

    def undecided(self, record: Record) -> Cell | None:
        """Return a cell that is null in some rows only, if the transform treats these rows differently; else None."""
        del record
        return None

    @abstractmethod
    def apply(self, record: Record) -> Record | None:
        """Return the changed record; None drops it. Raises TransformError for a record that does not fit."""


@dataclass(frozen=True, slots=True)
class Sided(Transform):
    """A transform with a ``$Key`` and a ``$Value`` form that treats a null half in its own way."""

    side: Side

    def undecided(self, record: Record) -> Cell | None:
        return nullable(self.side.of(record))


def nullable(node: Node | None) -> Cell | None:
    """Return ``node`` if it is null in some rows only, else None."""
    return node if isinstance(node, Cell) and node.schema.optional and not node.present else None


def absent(node: Node | None) -> bool:
    """Return True if there is no such half, or it is null in every row."""
    return node is None or (isinstance(node, Constant) and node.value is None)


def missing(side: Side, schema: Schema, name: str) -> TransformError:
    """Return the error of a field that a struct does not have."""
    existing = [item.name for item in schema.fields]
    return TransformError(f"the {side} has no field {name}{nearest(name, existing)} (it has {', '.join(existing)})")


def struct_of(basics: Schema, members: Iterable[tuple[str, Node]]) -> StructNode:
    """Return a struct of these members with name, version, doc, parameters and optionality of ``basics``.

    Raises TransformError for two members of one name, which Connect's SchemaBuilder refuses too.
    """
    named: Sequence[tuple[str, Node]] = tuple(members)
    counted = Counter(name for name, _ in named)
    if doubled := [name for name, count in counted.items() if count > 1]:
        raise TransformError(f"there would be more than one field {doubled[0]}")
    fields = tuple(Field(name, node.schema) for name, node in named)
    return StructNode(replace(basics, type=Type.STRUCT, fields=fields), tuple(node for _, node in named))


def change_fields(
    record: Record, side: Side, name: str, fields: Collection[str], change: Callable[[Node, str], Node]
) -> Record:
    """Return ``record`` with ``change`` applied to these fields of its half, and a warning for each missing field.

    Raises TransformError, which names the transform ``name``, for a half that is not a struct.
    """
    half = side.struct(record, name)
    record = warn_of_missing(record, side, name, fields)
    members = ((field, change(node, field) if field in fields else node) for field, node in half.items())
    return side.put(record, struct_of(half.schema, members))


def warn_of_missing(record: Record, side: Side, name: str, fields: Iterable[str]) -> Record:
    """Return ``record`` with a warning for every one of ``fields`` that is missing, of which Connect says nothing."""
    existing = [field for field, _ in side.struct(record, name).items()]
    missing_fields = [field for field in fields if field not in existing]
    texts = (
        f"{name} changes nothing: the {side} has no field {field}{nearest(field, existing)}" for field in missing_fields
    )
    return replace(record, warnings=(*record.warnings, *texts))
