"""``io.confluent.connect.avro.AvroConverter``: Avro in the registry's wire format, compiled once per table.

A record is a zero byte, the schema's id in four bytes and the value in Avro's binary encoding. The registry is asked
for the id at the first record of a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, ClassVar, Self

from ..record.record import Cell, Java, Kind, Node, RowError, StructNode
from ..record.row_value import Row, plain_value, refuse_misfit, row_reader, writer_of
from ..record.schema import DECIMAL, Schema, Type
from ..setting import Setting, boolean, honoured, one_of
from .avro_schema import AvroNames, avro_schema, record_name, without_logical_types
from .converter import Render
from .json_value import decimal_bytes
from .schema_registry import OPTIONS, Registry, RegistryConverter

__all__ = ["AvroConverter"]

_off = one_of("false", otherwise="not supported; leave it out")


@dataclass(frozen=True, slots=True)
class AvroConverter(RegistryConverter):
    """Writes Avro under the schema that AvroData makes, for the half and topic of ``at``."""

    options: ClassVar[tuple[Setting, ...]] = (
        *OPTIONS,
        honoured("scrub.invalid.names", "change names that Avro forbids", "false", boolean),
        honoured("connect.meta.data", "keep Connect's names, versions, parameters", "true", boolean),
        honoured("enhanced.avro.schema.support", "no effect: namespaces are kept anyway", "false", boolean),
        honoured("generalized.sum.type.support", "no effect: no unions", "false", boolean),
        honoured("flatten.singleton.unions", "for reading only", "true", boolean),
        honoured("allow.optional.map.keys", "no effect: map keys", "false", boolean),
        honoured("ignore.default.for.nullables", "no effect: no defaults", "false", boolean),
        honoured("discard.type.doc.default", "leave out docs", "false", _off),
        honoured("avro.use.logical.type.converters", "Java objects", "false", _off),
    )

    names: AvroNames

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        names = AvroNames(scrub=options["scrub.invalid.names"], meta=options["connect.meta.data"])
        return cls(Registry.read(options), names)

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """Return the function that writes ``node``; null is no bytes. Raises ValueError for names that Avro forbids.

        The function also raises Unreachable and ConfigError of the registry.
        """
        if node is None:
            return lambda _: None
        schema = avro_schema(node.schema, self.names)
        name = record_name(node.schema, self.names)
        frame = self.frame(schema, "AVRO", partial(_is_written_alike, schema), name)
        read = row_reader(node, positions, self._value, self._struct, _cell)
        # KafkaAvroSerializer writes a required value of bytes as it is, without its length
        write = bytes if node.schema.type is Type.BYTES and not node.schema.optional else _encoder(schema)

        def render(raw: Row) -> bytes | None:
            value = read(raw)
            return None if value is None else frame() + write(value)

        return render

    def _value(self, schema: Schema, java: Java) -> Callable[[Any], Any]:
        refuse_misfit(schema, java)
        return decimal_bytes(schema) if schema.name == DECIMAL else plain_value(schema, java)

    def _struct(self, node: StructNode) -> Callable[[Sequence[Any]], Any]:
        names = [self.names.name(field.name) for field in node.schema.fields]
        return lambda members: dict(zip(names, members, strict=True))


_AS_DECODED = {Kind.BOOLEAN, Kind.INTEGER, Kind.FLOAT32, Kind.FLOAT64, Kind.TEXT}


def _cell(cell: Cell, write: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    """Return the reader of a cell; values of some kinds go to Avro as they are decoded."""
    return cell.decode if cell.kind in _AS_DECODED and not cell.steps else writer_of(cell, write, None)


def _encoder(schema: str) -> Callable[[Any], bytes]:
    """Return the function from a value to Avro. The function raises RowError for a value of another type."""
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(without_logical_types(json.loads(schema)))

    def encode(value: Any) -> bytes:
        encoded = BytesIO()
        try:
            schemaless_writer(encoded, parsed, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise RowError(f"Avro can't write the row under its schema ({type(error).__name__})") from None
        return encoded.getvalue()

    return encode


def _is_written_alike(schema: str, registered: str) -> bool:
    """Return True if records of both schemas have the same bytes: names, types and order are equal."""
    from fastavro.schema import to_parsing_canonical_form

    return bool(to_parsing_canonical_form(json.loads(schema)) == to_parsing_canonical_form(json.loads(registered)))
