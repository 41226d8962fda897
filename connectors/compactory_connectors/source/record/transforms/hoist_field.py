"""``HoistField$Key/$Value``: the half becomes the only field of a struct (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...setting import Setting, required_text
from ..record import Record
from ..schema import Schema, Type
from .transform import Side, Steady, TransformError, struct_of

__all__ = ["HoistField"]


@dataclass(frozen=True, slots=True)
class HoistField(Steady):
    """A struct without a name, with the half as its field; a null half becomes a null field."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="field", meaning="name of the only field", parse=required_text),
    )

    side: Side
    field: str

    @classmethod
    def read(cls, side: Side, options: Mapping[str, Any]) -> HoistField:
        """The transform with these options."""
        return cls(side, options["field"])

    def apply(self, record: Record) -> Record:
        """``record`` with a struct around its half."""
        half = self.side.of(record)
        if half is None:
            raise TransformError(
                "the key is missing: HoistField would give every record the same one; make a key first"
            )
        return self.side.put(record, struct_of(Schema(type=Type.STRUCT), [(self.field, half)]))
