"""``Cast$Key/$Value``: fields, or the whole half, to another primitive type (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...setting import Setting, nearest, non_empty_names
from ..record import Cell, Constant, Java, Node, Record, RowError, Step, StructNode
from ..schema import Schema, Type
from .cast_value import caster
from .transform import NO_DEFAULTS, Sided, TransformError, absent, struct_of, warned

__all__ = ["Cast"]

_TARGETS: Mapping[str, tuple[Type, Java]] = {
    "int8": (Type.INT8, Java.BYTE),
    "int16": (Type.INT16, Java.SHORT),
    "int32": (Type.INT32, Java.INTEGER),
    "int64": (Type.INT64, Java.LONG),
    "float32": (Type.FLOAT32, Java.FLOAT),
    "float64": (Type.FLOAT64, Java.DOUBLE),
    "boolean": (Type.BOOLEAN, Java.BOOLEAN),
    "string": (Type.STRING, Java.STRING),
}


_WHOLE = (Java.BYTE, Java.SHORT, Java.INTEGER, Java.LONG)
_LOSSLESS = {(small, wide) for number, small in enumerate(_WHOLE) for wide in (*_WHOLE[number:], Java.STRING)}
_LOSSLESS |= {(java, java) for java in Java} | {(Java.BOOLEAN, wide) for wide in (*_WHOLE, Java.STRING)}
_LOSSLESS |= {(java, Java.STRING) for java in (Java.FLOAT, Java.DOUBLE, Java.DECIMAL, Java.BYTES)}


def _spec(text: str) -> Mapping[str, str]:
    """Names of fields → names of types; the whole half stands under the empty name."""
    casts: dict[str, str] = {}
    parts = non_empty_names(text)
    for part in parts:
        name, colon, target = (piece.strip() for piece in part.rpartition(":"))
        if ":" in name or (colon and not name):
            raise ValueError(f"must be field:type or one type: {part} is neither")
        if target.lower() not in _TARGETS:
            raise ValueError(f"must name types: {target} is none of {', '.join(_TARGETS)}{nearest(target, _TARGETS)}")
        casts[name] = target.lower()
    if "" in casts and len(parts) > 1:
        raise ValueError("must be one type alone, or fields with their types: both at once contradict each other")
    return casts


@dataclass(frozen=True, slots=True)
class Cast(Sided):
    """Casts as Java narrows: integers wrap around, floats are cut off and saturate, texts are parsed."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(
            name="spec",
            meaning=f"field:type pairs, or one type for the whole half; types: {', '.join(_TARGETS)}",
            parse=_spec,
        ),
        NO_DEFAULTS,
    )

    casts: Mapping[str, str]

    @classmethod
    def read(cls, side: Any, options: Mapping[str, Any]) -> Cast:
        """The transform with these options."""
        return cls(side, options["spec"])

    def apply(self, record: Record) -> Record:
        """``record`` with the casts done; fields that are not there are passed over, as the class does."""
        half = self.side.of(record)
        if half is None or absent(half):
            return record
        if whole := self.casts.get(""):
            node = _cast(half, whole, f"the {self.side}")
            # the class keeps name and parameters of the schema, even of a logical type
            return self.side.put(record, _with_schema(node, replace(half.schema, type=node.schema.type, fields=())))
        half = self.side.struct(record, "Cast with fields in its spec")
        members = [
            (item.name, _cast(node, self.casts[item.name], item.name) if item.name in self.casts else node)
            for item, node in zip(half.schema.fields, half.members, strict=True)
        ]
        return self.side.put(
            warned(record, "Cast", half, self.casts, self.side), struct_of(half.schema, members, half.when)
        )


def _with_schema(node: Node, schema: Schema) -> Node:
    return replace(node, schema=schema)


def _cast(node: Node, name: str, field: str) -> Node:
    target, java = _TARGETS[name]
    schema = Schema(type=target, optional=node.schema.optional)
    if isinstance(node, StructNode):
        raise TransformError(f"{field} is a struct, which can't be cast")
    if absent(node):
        return Constant(schema=schema, java=java, value=None)
    try:
        cast = caster(node.java, node.schema, target)
        if isinstance(node, Constant):
            return Constant(schema=schema, java=java, value=cast(node.value))
    except RowError as error:
        raise TransformError(f"{field}: {error}") from None
    except ValueError as error:
        raise TransformError(f"{field} {error}") from None
    return _cast_cell(node, schema, java, Step(cast, lossless=(node.java, java) in _LOSSLESS))


def _cast_cell(node: Cell, schema: Schema, java: Java, step: Step) -> Cell:
    return replace(node, schema=schema, java=java, steps=(*node.steps, step))
