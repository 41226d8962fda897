"""``Flatten$Key/$Value``: nested structs become fields of the outermost (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...setting import Setting, text
from ..record import Cell, Constant, Node, Record, StructNode
from .transform import Sided, absent, is_null_struct, nullable, struct_of

__all__ = ["Flatten"]


@dataclass(frozen=True, slots=True)
class Flatten(Sided):
    """Names of nested fields are joined by ``delimiter``; what lies in an optional struct becomes optional."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="delimiter", meaning="what stands between the names", default=".", parse=text),
    )

    delimiter: str

    @classmethod
    def read(cls, side: Any, options: Mapping[str, Any]) -> Flatten:
        """The transform with these options."""
        return cls(side, options["delimiter"])

    def undecided(self, record: Record) -> Node | None:
        """The half, or a nested struct that can be null and holds what is not a column's."""
        half = self.side.of(record)
        if (found := nullable(half)) is not None or not isinstance(half, StructNode):
            return found
        return next((node for node in _nested(half) if node.when is not None and not _of_columns(node)), None)

    def apply(self, record: Record) -> Record:
        """``record`` with its half flattened."""
        if absent(self.side.of(record)):
            return record
        half = self.side.struct(record, "Flatten")
        members = self._flat(half, "", optional=half.schema.optional)
        return self.side.put(record, struct_of(replace(half.schema, optional=False), members))

    def _flat(self, struct: StructNode, prefix: str, *, optional: bool) -> Iterator[tuple[str, Node]]:
        for item, node in zip(struct.schema.fields, struct.members, strict=True):
            name = f"{prefix}{self.delimiter}{item.name}" if prefix else item.name
            may_be_null = optional or item.schema.optional
            if is_null_struct(node):
                empty = (Constant(schema=inner.schema, java=_null(node), value=None) for inner in item.schema.fields)
                node = StructNode(item.schema, tuple(empty))
            if isinstance(node, StructNode):
                yield from self._flat(node, name, optional=may_be_null)
            else:
                yield name, replace(node, schema=node.schema.as_optional(may_be_null))


def _null(node: Node) -> Any:
    assert isinstance(node, Constant)
    return node.java


def _nested(struct: StructNode) -> Iterator[StructNode]:
    for node in struct.members:
        if isinstance(node, StructNode):
            yield node
            yield from _nested(node)


def _of_columns(struct: StructNode) -> bool:
    """Whether all that it holds is null wherever it is null itself."""
    return all(
        isinstance(node, Cell) or (isinstance(node, StructNode) and _of_columns(node)) for node in struct.members
    )
