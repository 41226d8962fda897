"""Transforms that change the shape of a key or value (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..record.record import Cell, Constant, Node, Record, StructNode
from ..record.schema import Schema, Type
from ..setting import non_empty_names, option, required_text
from .transform import (
    Side,
    Sided,
    Transform,
    TransformError,
    absent,
    is_null_struct,
    missing,
    no_defaults,
    null_of,
    nullable,
    struct_of,
)

__all__ = ["ExtractField", "Flatten", "HoistField", "SetSchemaMetadata", "ValueToKey"]


def _syntax(written: str) -> str:
    if written.upper() not in {"V1", "V2"}:
        raise ValueError("must be V1 or V2")
    return written.upper()


@dataclass(frozen=True, slots=True)
class ExtractField(Sided):
    """Replaces the whole key or value by one of its fields. A missing key stays missing, null stays null."""

    field: str = option("the field to extract", parse=required_text)
    field_syntax_version: str = option("V2 reads dots in the field's name as a path", "V1", _syntax)
    replace_null_with_default: bool = no_defaults()

    def __post_init__(self) -> None:
        try:
            self._path()
        except ValueError as error:
            raise ValueError(f"field: {error}") from None

    def _path(self) -> tuple[str, ...]:
        return _field_path(self.field) if self.field_syntax_version == "V2" else (self.field,)

    def undecided(self, record: Record) -> Node | None:
        """Return the first struct on the path that is null in some rows only."""
        node = self.side.of(record)
        for step in self._path():
            if not isinstance(node, StructNode):
                return None
            if (nullable_struct := nullable(node)) is not None:
                return nullable_struct
            node = node.member(step)
        return None

    def apply(self, record: Record) -> Record:
        """Return ``record`` with the field in place of its half."""
        node = self.side.of(record)
        if node is None:
            return record
        for step in self._path():
            node = self._member(node, step)
        return self.side.put(record, node)

    def _member(self, node: Node, step: str) -> Node:
        if isinstance(node, StructNode):
            member = node.member(step)
        elif node.schema.fields and absent(node):
            member = next((null_of(item.schema) for item in node.schema.fields if item.name == step), None)
        else:
            raise TransformError(f"the {self.side} is not a struct, so it has no field {self.field}")
        if member is None:
            raise missing(self.side, node.schema, self.field)
        return member


_STEP = re.compile(r"`(?P<quoted>.*?)(?<!\\)`(?:\.|\Z)|(?!`)(?P<plain>[^.]*)(?:\.|\Z)", re.DOTALL)
"""A name and the dot after it. A backtick closes a name in backticks if a dot or the end follows it."""


def _field_path(text: str) -> tuple[str, ...]:
    """Return the names in a path of syntax V2: dots part them, a name in backticks may have dots (KIP-821).

    Raises ValueError for a backtick that is not closed.
    """
    steps: list[str] = []
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            raise ValueError(f"the backtick at position {position} of {text!r} is not closed; a backslash escapes one")
        steps.append(step["quoted"].replace("\\`.", "`.") if step["plain"] is None else step["plain"])
        position = step.end()
    return (*steps, "") if text.endswith(".") else tuple(steps)


@dataclass(frozen=True, slots=True)
class Flatten(Sided):
    """Joins the names of nested fields by ``delimiter``. Fields of an optional struct become optional."""

    delimiter: str = option("text between the names", ".")

    def undecided(self, record: Record) -> Node | None:
        """Return the half, or a nested struct with constants, if it is null in some rows only."""
        half = self.side.of(record)
        if (nullable_half := nullable(half)) is not None or not isinstance(half, StructNode):
            return nullable_half
        return next((node for node in _nested(half) if node.when is not None and not _has_columns_only(node)), None)

    def apply(self, record: Record) -> Record:
        """Return ``record`` with its half flattened."""
        if absent(self.side.of(record)):
            return record
        half = self.side.struct(record, "Flatten")
        members = self._flat(half, "", optional=half.schema.optional)
        return self.side.put(record, struct_of(replace(half.schema, optional=False), members))

    def _flat(self, struct: StructNode, prefix: str, *, optional: bool) -> Iterator[tuple[str, Node]]:
        for own, node in struct.items():
            name = f"{prefix}{self.delimiter}{own}" if prefix else own
            may_be_null = optional or node.schema.optional
            if isinstance(node, Constant) and is_null_struct(node):
                nulls = (replace(null_of(item.schema), java=node.java) for item in node.schema.fields)
                node = StructNode(node.schema, tuple(nulls))
            if isinstance(node, StructNode):
                yield from self._flat(node, name, optional=may_be_null)
            else:
                yield name, replace(node, schema=node.schema.as_optional(may_be_null))


def _nested(struct: StructNode) -> Iterator[StructNode]:
    for node in struct.members:
        if isinstance(node, StructNode):
            yield node
            yield from _nested(node)


def _has_columns_only(struct: StructNode) -> bool:
    """Return True if all members are null wherever the struct is null."""
    return all(
        isinstance(node, Cell) or (isinstance(node, StructNode) and _has_columns_only(node)) for node in struct.members
    )


@dataclass(frozen=True, slots=True)
class HoistField(Transform):
    """Wraps the key or value as the only field of a struct without a name. Null becomes a null field."""

    side: Side
    field: str = option("name of the only field", parse=required_text)

    def apply(self, record: Record) -> Record:
        """Return ``record`` with a struct around its half."""
        half = self.side.of(record)
        if half is None:
            raise TransformError(
                "the key is missing: HoistField would give every record the same one; make a key first"
            )
        return self.side.put(record, struct_of(Schema(type=Type.STRUCT), [(self.field, half)]))


@dataclass(frozen=True, slots=True)
class ValueToKey(Transform):
    """Copies ``fields`` of the value into a new key struct, in the order given."""

    fields: tuple[str, ...] = option("fields of the value that make the key", parse=non_empty_names)
    replace_null_with_default: bool = no_defaults()

    def undecided(self, record: Record) -> Node | None:
        """Return the value if it is null in some rows only: these have no fields to copy."""
        return nullable(record.value)

    def apply(self, record: Record) -> Record:
        """Return ``record`` with a struct of the fields as its key."""
        side = Side("Value")
        value = side.struct(record, "ValueToKey")
        members = [(name, node) for name in self.fields if (node := value.member(name)) is not None]
        if len(members) < len(self.fields):
            raise missing(side, value.schema, next(name for name in self.fields if value.member(name) is None))
        return replace(record, key=struct_of(Schema(type=Type.STRUCT), members))


def _version(written: str) -> int | None:
    if not written:
        return None
    try:
        number = int(written)
    except ValueError:
        number = 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError("must be a whole number of 32 bits")
    return number


@dataclass(frozen=True, slots=True)
class SetSchemaMetadata(Transform):
    """Sets name and version of the schema of a struct, which converters with schemas write."""

    side: Side
    schema_name: str = option("the schema's name; empty: as it is", "")
    schema_version: int | None = option("the schema's version; empty: as it is", "", _version)
    replace_null_with_default: bool = no_defaults()

    def __post_init__(self) -> None:
        if not self.schema_name and self.schema_version is None:
            raise ValueError("nothing to set; give schema.name or schema.version")

    def apply(self, record: Record) -> Record:
        """Return ``record`` with the schema of its half changed; a missing key stays missing."""
        half = self.side.of(record)
        if half is None:
            return record
        old = half.schema
        if old.type is not Type.STRUCT:
            raise TransformError(f"the {self.side} is not a struct, and Kafka Connect fails on anything else")
        version = old.version if self.schema_version is None else self.schema_version
        return self.side.put(
            record, replace(half, schema=replace(old, name=self.schema_name or old.name, version=version))
        )
