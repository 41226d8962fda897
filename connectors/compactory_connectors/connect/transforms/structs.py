"""Transforms that change the shape of a key or value (org.apache.kafka.connect.transforms)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..record.record import Cell, Node, Record, StructNode
from ..record.schema import Schema, Type
from ..setting import non_empty_names, one_of, option, required_text, whole_number
from .transform import Side, Sided, Transform, TransformError, absent, missing, no_defaults, nullable, struct_of

__all__ = ["ExtractField", "Flatten", "HoistField", "SetSchemaMetadata", "ValueToKey"]


_syntax = one_of("V1", "v1", otherwise="a path is not supported; chain an ExtractField for each struct")


@dataclass(frozen=True, slots=True)
class ExtractField(Sided):
    """Replaces the whole key or value by one of its fields. A missing key stays missing, null stays null."""

    field: str = option("the field to extract", parse=required_text)
    field_syntax_version: str = option("V1: a dot in the field's name is a part of it", "V1", _syntax)
    replace_null_with_default: bool = no_defaults()

    def apply(self, record: Record) -> Record:
        half = self.side.of(record)
        if half is None:
            return record
        if not isinstance(half, StructNode):
            raise TransformError(f"the {self.side} is not a struct, so it has no field {self.field}")
        if (member := half.member(self.field)) is None:
            raise missing(self.side, half.schema, self.field)
        return self.side.put(record, member)


@dataclass(frozen=True, slots=True)
class Flatten(Sided):
    """Joins the names of nested fields by ``delimiter``. Fields of an optional struct become optional."""

    delimiter: str = option("text between the names", ".")

    def apply(self, record: Record) -> Record:
        if absent(self.side.of(record)):
            return record
        half = self.side.struct(record, "Flatten")
        members = self._flat(half, "", optional=half.schema.optional)
        return self.side.put(record, struct_of(replace(half.schema, optional=False), members))

    def _flat(self, struct: StructNode, prefix: str, *, optional: bool) -> Iterator[tuple[str, Node]]:
        for own, node in struct.items():
            name = f"{prefix}{self.delimiter}{own}" if prefix else own
            may_be_null = optional or node.schema.optional
            if isinstance(node, StructNode):
                yield from self._flat(node, name, optional=may_be_null)
            else:
                yield name, replace(node, schema=node.schema.as_optional(may_be_null))


@dataclass(frozen=True, slots=True)
class HoistField(Transform):
    """Wraps the key or value as the only field of a struct without a name. Null becomes a null field."""

    side: Side
    field: str = option("name of the only field", parse=required_text)

    def apply(self, record: Record) -> Record:
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

    def undecided(self, record: Record) -> Cell | None:
        return nullable(record.value)

    def apply(self, record: Record) -> Record:
        side = Side("Value")
        value = side.struct(record, "ValueToKey")
        members = []
        for name in self.fields:
            if (node := value.member(name)) is None:
                raise missing(side, value.schema, name)
            members.append((name, node))
        return replace(record, key=struct_of(Schema(type=Type.STRUCT), members))


def _version(written: str) -> int | None:
    if not written:
        return None
    number = whole_number(written)
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
