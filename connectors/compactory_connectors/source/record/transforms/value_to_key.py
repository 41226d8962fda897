"""``ValueToKey``: the key becomes a struct of fields of the value (org.apache.kafka.connect.transforms.ValueToKey)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...setting import Setting, nearest, non_empty_names
from ..record import Node, Record
from ..schema import Schema, Type
from .transform import NO_DEFAULTS, Side, TransformError, nullable, struct_of

__all__ = ["ValueToKey"]


@dataclass(frozen=True, slots=True)
class ValueToKey:
    """Copies ``fields`` of the value into a new key struct, in the order given."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="fields", meaning="fields of the value that the key is made of", parse=non_empty_names),
        NO_DEFAULTS,
    )

    fields: tuple[str, ...]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> ValueToKey:
        """The transform with these options."""
        return cls(options["fields"])

    def undecided(self, record: Record) -> Node | None:
        """The value, where it can be null: there are no fields to copy then."""
        return nullable(record.value)

    def apply(self, record: Record) -> Record:
        """``record`` with a struct of the fields as its key."""
        value = Side("Value").struct(record, "ValueToKey")
        members: list[tuple[str, Node]] = []
        for name in self.fields:
            node = value.member(name)
            if node is None:
                names = [item.name for item in value.schema.fields]
                raise TransformError(f"the value has no field {name}{nearest(name, names)} (it has {', '.join(names)})")
            members.append((name, node))
        return replace(record, key=struct_of(Schema(type=Type.STRUCT), members))
