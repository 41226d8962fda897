"""``ValueToKey``: the key becomes a struct of fields of the value (org.apache.kafka.connect.transforms.ValueToKey)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..record import Node, Record, StructNode
from ..schema import Field, Schema, Type
from ..setting import Setting, nearest, non_empty_names
from .transform import TransformError

__all__ = ["ValueToKey"]


@dataclass(frozen=True, slots=True)
class ValueToKey:
    """Copies ``fields`` of the value into a new key struct, in the order given."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="fields", meaning="fields of the value that the key is made of", parse=non_empty_names),
    )

    fields: tuple[str, ...]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> ValueToKey:
        """The transform with these options."""
        return cls(options["fields"])

    def apply(self, record: Record) -> Record:
        """``record`` with a struct of the fields as its key."""
        value = record.value
        if not isinstance(value, StructNode):
            raise TransformError("the value is not a struct")
        members: list[Node] = []
        for name in self.fields:
            node = value.member(name)
            if node is None:
                names = [item.name for item in value.schema.fields]
                raise TransformError(f"the value has no field {name}{nearest(name, names)} (it has {', '.join(names)})")
            members.append(node)
        fields = tuple(Field(name, node.schema) for name, node in zip(self.fields, members, strict=True))
        return replace(record, key=StructNode(Schema(type=Type.STRUCT, fields=fields), tuple(members)))
