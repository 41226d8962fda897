"""Transforms of single fields (org.apache.kafka.connect.transforms): left out, added, masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from ..record.record import WHOLES, Cell, Constant, Java, Node, Record, Step, StructNode, with_step
from ..record.schema import Schema, Type
from ..setting import names, non_empty_names, option, required_text
from .cast import caster
from .transform import Sided, TransformError, absent, change_fields, no_defaults, struct_of, warn_of_missing

__all__ = ["InsertField", "MaskField", "ReplaceField"]


def _renames(written: str) -> Mapping[str, str]:
    renames: dict[str, str] = {}
    for part in names(written):
        pieces = part.split(":")
        if len(pieces) != 2 or not all(pieces):
            raise ValueError(f"must be pairs old:new: {part} is none")
        renames[pieces[0]] = pieces[1]
    doubled = [name for name, count in Counter(renames.values()).items() if count > 1]
    if doubled:
        raise ValueError(f"must give every field a name of its own: {doubled[0]} is there more than once")
    return renames


@dataclass(frozen=True, slots=True)
class ReplaceField(Sided):
    """Removes, keeps and renames fields. ``exclude`` wins over ``include``; both take the old names."""

    exclude: tuple[str, ...] = option("fields to leave out", "", names)
    include: tuple[str, ...] = option("fields to keep; empty: all", "", names)
    renames: Mapping[str, str] = option("pairs old:new", "", _renames)
    blacklist: tuple[str, ...] = option("older name of exclude", "", names)
    whitelist: tuple[str, ...] = option("older name of include", "", names)
    replace_null_with_default: bool = no_defaults()

    def __post_init__(self) -> None:
        for new, old in (("exclude", "blacklist"), ("include", "whitelist")):
            if getattr(self, new) and getattr(self, old):
                raise ValueError(f"{old} is the older name of {new}; leave it out")

    def apply(self, record: Record) -> Record:
        if absent(self.side.of(record)):
            return record
        half = self.side.struct(record, "ReplaceField")
        excluded, included = self.exclude or self.blacklist, self.include or self.whitelist
        old_names = {new: old for old, new in self.renames.items()}
        members = []
        for old, node in half.items():
            if old in excluded or (included and old not in included):
                continue
            name = self.renames.get(old, old)
            if half.member(old_names.get(name, name)) is None:
                raise TransformError(
                    f"renames: {old_names[name]}:{name} names a field that is not there, while {name} is"
                )
            members.append((name, node))
        named = dict.fromkeys((*excluded, *included, *self.renames))
        record = warn_of_missing(record, self.side, "ReplaceField", named)
        return self.side.put(record, struct_of(replace(half.schema, optional=False), members))


class _Inserted(NamedTuple):
    """A field to insert, as a configuration writes it."""

    name: str
    optional: bool


def _field_to_insert(written: str) -> _Inserted | None:
    if not written:
        return None
    name = required_text(written[:-1] if written[-1] in "?!" else written)
    return _Inserted(name, not written.endswith("!"))


def _field(meaning: str) -> Any:
    return option(f"{meaning}; a suffix ! makes it required, ? optional (the default)", "", _field_to_insert)


@dataclass(frozen=True, slots=True)
class InsertField(Sided):
    """Appends fields to a struct. A source's record has neither partition nor timestamp yet: those fields are null."""

    topic_field: _Inserted | None = _field("field for the topic")
    partition_field: _Inserted | None = _field("field for the partition, which is null")
    offset_field: _Inserted | None = _field("refused: only a sink's records have offsets")
    timestamp_field: _Inserted | None = _field("field for the record's timestamp, which is null")
    static_field: _Inserted | None = _field("field for static.value")
    static_value: str = option("text of static.field", "")
    replace_null_with_default: bool = no_defaults()

    def __post_init__(self) -> None:
        if self.offset_field:
            raise ValueError("offset.field: a source's records have no offset yet, so Kafka Connect fails on it too")
        if not (self.topic_field or self.partition_field or self.timestamp_field or self.static_field):
            raise ValueError("no field to insert; set topic.field, partition.field, timestamp.field or static.field")
        if self.static_field and not self.static_value:
            raise ValueError("static.field needs static.value")

    def apply(self, record: Record) -> Record:
        if absent(self.side.of(record)):
            return record
        half = self.side.struct(record, "InsertField")
        members = [*half.items(), *self._inserted(record)]
        return self.side.put(record, struct_of(replace(half.schema, optional=False), members))

    def _inserted(self, record: Record) -> Iterator[tuple[str, Node]]:
        if self.topic_field:
            yield _inserted_constant(self.topic_field, Schema(type=Type.STRING), Java.STRING, record.topic)
        if self.partition_field:
            yield _inserted_constant(self.partition_field, Schema(type=Type.INT32), Java.INTEGER, None)
        if self.timestamp_field:
            yield _inserted_constant(self.timestamp_field, Schema.timestamp(), Java.DATE, None)
        if self.static_field:
            yield _inserted_constant(self.static_field, Schema(type=Type.STRING), Java.STRING, self.static_value)


def _inserted_constant(field: _Inserted, schema: Schema, java: Java, value: str | None) -> tuple[str, Node]:
    return field.name, Constant(schema=schema.as_optional(field.optional), java=java, value=value)


_MASKS: Mapping[Java, Any] = {
    Java.BOOLEAN: False,
    **dict.fromkeys((*WHOLES, Java.DATE), 0),
    **dict.fromkeys((Java.FLOAT, Java.DOUBLE), 0.0),
    Java.DECIMAL: Decimal(0),
    Java.STRING: "",
}
"""The values of masked fields by class. The dates of java.sql are missing, as in the Java class."""

_NUMBERS = {*WHOLES, Java.FLOAT, Java.DOUBLE, Java.DECIMAL}


@dataclass(frozen=True, slots=True)
class MaskField(Sided):
    """Replaces values that are not null by 0, false, an empty text or ``replacement``; missing fields are left out."""

    fields: tuple[str, ...] = option("fields to mask", parse=non_empty_names)
    replacement: str = option("number or text that replaces the values; empty: 0, false, no text", "")
    replace_null_with_default: bool = no_defaults()

    def apply(self, record: Record) -> Record:
        return change_fields(record, self.side, "MaskField", self.fields, self._masked)

    def _masked(self, node: Node, name: str) -> Node:
        if absent(node):
            return node
        if isinstance(node, StructNode):
            raise TransformError(f"{name} is a struct, which can't be masked")
        mask = self._mask(node.java, node.schema, name)
        plain = isinstance(mask, str) and _needs_no_escape(mask) and isinstance(node, Cell) and not node.steps
        quick = {node.kind: lambda _: mask.encode()} if plain and isinstance(node, Cell) else {}
        return with_step(node, node.schema, node.java, Step(lambda _: mask, quick))

    def _mask(self, java: Java, schema: Schema, name: str) -> Any:
        if not self.replacement:
            if java not in _MASKS:
                raise TransformError(f"{name} is of class {java.value}, which MaskField can't mask")
            return _MASKS[java]
        if java is Java.STRING:
            return self.replacement
        if java not in _NUMBERS:
            raise TransformError(f"{name} is of class {java.value}, which MaskField can't give a replacement")
        try:
            if not (number := Decimal(self.replacement)).is_finite():
                raise InvalidOperation
            return number if java is Java.DECIMAL else caster(Java.DECIMAL, schema, schema.type)(number)
        except (InvalidOperation, ValueError, OverflowError):
            raise TransformError(f"{name}: replacement {self.replacement!r} is not a number") from None


def _needs_no_escape(mask: str) -> bool:
    return mask.isascii() and mask.isprintable() and not set(mask) & {'"', "\\"}
