"""``ExtractField$Key/$Value``: a struct becomes one of its fields (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..record import Record, StructNode
from ..setting import Setting, nearest, one_of, required_text
from .transform import Side, TransformError

__all__ = ["ExtractField"]


@dataclass(frozen=True, slots=True)
class ExtractField:
    """Puts the field called ``field`` in place of the whole key or value. A missing key stays missing."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="field", meaning="the field to extract", parse=required_text),
        Setting(
            name="field.syntax.version",
            meaning="V2 reads dots in the field's name as a path",
            default="V1",
            parse=one_of("V1", otherwise="paths into nested fields are not supported yet"),
        ),
    )

    side: Side
    field: str

    @classmethod
    def read(cls, side: Side, options: Mapping[str, Any]) -> ExtractField:
        """The transform with these options."""
        return cls(side, options["field"])

    def apply(self, record: Record) -> Record:
        """``record`` with the field in place of its half."""
        half = self.side.of(record)
        if half is None:
            return record
        if not isinstance(half, StructNode):
            raise TransformError(f"the {self.side.name.lower()} is not a struct, so it has no field {self.field}")
        node = half.member(self.field)
        if node is None:
            names = [item.name for item in half.schema.fields]
            hint = f"{nearest(self.field, names)} (it has {', '.join(names)})"
            raise TransformError(f"the {self.side.name.lower()} has no field {self.field}{hint}")
        return self.side.put(record, node)
