"""``InsertField$Key/$Value``: fields of the record's metadata or a fixed value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ...setting import Setting, required_text, text
from ..record import Constant, Java, Node, Record
from ..schema import Schema, Type
from .transform import NO_DEFAULTS, Sided, TransformError, absent, struct_of

__all__ = ["InsertField"]

_SUFFIX = "; ! behind it: required, ?: optional (the default)"


class _Inserted(NamedTuple):
    """A field to insert."""

    name: str
    optional: bool


def _inserted(written: str) -> _Inserted | None:
    if not written:
        return None
    name = required_text(written[:-1] if written[-1] in "?!" else written)
    return _Inserted(name, not written.endswith("!"))


def _field(option: str, meaning: str) -> Setting:
    return Setting(name=f"{option}.field", meaning=f"{meaning}{_SUFFIX}", default="", parse=_inserted)


@dataclass(frozen=True, slots=True)
class InsertField(Sided):
    """Appends fields to a struct. A source's record has neither partition nor timestamp yet: those fields are null."""

    options: ClassVar[tuple[Setting, ...]] = (
        _field("topic", "field for the topic"),
        _field("partition", "field for the partition, which is null"),
        _field("offset", "refused: only a sink's records have offsets"),
        _field("timestamp", "field for the record's timestamp, which is null"),
        _field("static", "field for static.value"),
        Setting(name="static.value", meaning="text of static.field", default="", parse=text),
        NO_DEFAULTS,
    )

    topic: _Inserted | None
    partition: _Inserted | None
    timestamp: _Inserted | None
    static: _Inserted | None
    value: str

    @classmethod
    def read(cls, side: Any, options: Mapping[str, Any]) -> InsertField:
        """The transform with these options. Raises ValueError for none at all, for an offset, for no static value."""
        if options["offset.field"]:
            raise ValueError("offset.field: a source's records have no offset yet, so Kafka Connect fails on it too")
        fields = [options[f"{name}.field"] for name in ("topic", "partition", "timestamp", "static")]
        if not any(fields):
            raise ValueError("no field to insert; set topic.field, partition.field, timestamp.field or static.field")
        if options["static.field"] and not options["static.value"]:
            raise ValueError("static.field needs static.value")
        topic, partition, timestamp, static = fields
        return cls(side, topic, partition, timestamp, static, options["static.value"])

    def apply(self, record: Record) -> Record:
        """``record`` with the fields behind those that it has; a missing or null half stays as it is."""
        if absent(self.side.of(record)):
            return record
        half = self.side.struct(record, "InsertField")
        there = [(item.name, node) for item, node in zip(half.schema.fields, half.members, strict=True)]
        new = struct_of(replace(half.schema, optional=False), [*there, *self._new(record)])
        return self.side.put(record, new)

    def _new(self, record: Record) -> Iterator[tuple[str, Node]]:
        if self.topic:
            if record.dated:
                raise TransformError("topic.field: the topic hangs on the time; put TimestampRouter behind InsertField")
            yield self.topic.name, _constant(Type.STRING, Java.STRING, self.topic, record.topic)
        if self.partition:
            yield self.partition.name, _constant(Type.INT32, Java.INTEGER, self.partition, None)
        if self.timestamp:
            missing = _constant(Type.INT64, Java.DATE, self.timestamp, None)
            yield self.timestamp.name, replace(missing, schema=Schema.timestamp(optional=self.timestamp.optional))
        if self.static:
            yield self.static.name, _constant(Type.STRING, Java.STRING, self.static, self.value)


def _constant(kind: Type, java: Java, field: _Inserted, value: Any) -> Constant:
    return Constant(schema=Schema(type=kind, optional=field.optional), java=java, value=value)
