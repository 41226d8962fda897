"""``MaskField$Key/$Value``: fields hidden behind a fixed value of their type (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from ...setting import Setting, non_empty_names, text
from ..record import Constant, Java, Node, Record, Step, StructNode
from .cast_value import float32
from .transform import NO_DEFAULTS, Sided, TransformError, absent, struct_of, warned

__all__ = ["MaskField"]

_NOTHING: Mapping[Java, Any] = {
    Java.BOOLEAN: False,
    Java.BYTE: 0,
    Java.SHORT: 0,
    Java.INTEGER: 0,
    Java.LONG: 0,
    Java.FLOAT: 0.0,
    Java.DOUBLE: 0.0,
    Java.DECIMAL: Decimal(0),
    Java.DATE: 0,
    Java.STRING: "",
}
"""What stands for "no value" by class; java.sql's dates are not among them, as in the class."""


def _whole(bits: int) -> Callable[[str], int]:
    """A number of any form, cut off and wrapped around, as ``Values.convertTo…`` reads texts."""
    half = 1 << (bits - 1)
    return lambda written: (int(Decimal(written)) + half) % (2 * half) - half


_REPLACEMENTS: Mapping[Java, Callable[[str], Any]] = {
    Java.BYTE: _whole(8),
    Java.SHORT: _whole(16),
    Java.INTEGER: _whole(32),
    Java.LONG: _whole(64),
    Java.FLOAT: lambda written: float32(float(Decimal(written))),
    Java.DOUBLE: lambda written: float(Decimal(written)),
    Java.DECIMAL: Decimal,
    Java.STRING: str,
}


@dataclass(frozen=True, slots=True)
class MaskField(Sided):
    """Puts 0, false, an empty text or ``replacement`` in place of every value that is not null."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="fields", meaning="fields to mask", parse=non_empty_names),
        Setting(
            name="replacement",
            meaning="number or text in place of the values; empty: 0, false, no text",
            default="",
            parse=text,
        ),
        NO_DEFAULTS,
    )

    fields: tuple[str, ...]
    replacement: str

    @classmethod
    def read(cls, side: Any, options: Mapping[str, Any]) -> MaskField:
        """The transform with these options."""
        return cls(side, options["fields"], options["replacement"])

    def apply(self, record: Record) -> Record:
        """``record`` with the fields masked; fields that are not there are passed over, as the class does."""
        half = self.side.struct(record, "MaskField")
        members = [
            (item.name, self._masked(node, item.name) if item.name in self.fields else node)
            for item, node in zip(half.schema.fields, half.members, strict=True)
        ]
        masked = warned(record, "MaskField", half, self.fields, self.side)
        return self.side.put(masked, struct_of(half.schema, members, half.when))

    def _masked(self, node: Node, name: str) -> Node:
        if absent(node):
            return node
        if isinstance(node, StructNode):
            raise TransformError(f"{name} is a struct, which can't be masked")
        mask = self._mask(node.java, name)
        if isinstance(node, Constant):
            return replace(node, value=mask)
        plain = isinstance(mask, str) and _plain(mask) and not node.steps
        quick = {node.kind: lambda _: mask.encode()} if plain else {}
        return replace(node, steps=(*node.steps, Step(lambda _: mask, quick)))

    def _mask(self, java: Java, name: str) -> Any:
        if not self.replacement:
            if java not in _NOTHING:
                raise TransformError(f"{name} is of class {java.value}, which MaskField can't mask")
            return _NOTHING[java]
        if java not in _REPLACEMENTS:
            raise TransformError(f"{name} is of class {java.value}, which MaskField can't give a replacement")
        try:
            if java is not Java.STRING and not Decimal(self.replacement).is_finite():
                raise InvalidOperation
            return _REPLACEMENTS[java](self.replacement)
        except (InvalidOperation, ValueError, OverflowError):
            raise TransformError(f"{name}: replacement {self.replacement!r} is not a number") from None


def _plain(mask: str) -> bool:
    """Whether JSON writes the text as it is."""
    return mask.isascii() and mask.isprintable() and not set(mask) & {'"', "\\"}
