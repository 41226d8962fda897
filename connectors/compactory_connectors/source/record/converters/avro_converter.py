"""``io.confluent.connect.avro.AvroConverter``: Avro in the registry's wire format, compiled once per table.

A record is a zero byte, the schema's id in four bytes and the value in Avro's binary encoding. The registry is asked
for the id at the first record of a table.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ...setting import Setting, boolean, honoured, one_of
from ..record import Cell, Constant, Java, Kind, Node, RowError, StructNode, java_of, null_test, time_number, writer_of
from ..schema import DECIMAL, Schema, Type
from .avro_schema import AvroNames, avro_schema, record_name
from .converter import Render
from .json_value import decimal_bytes
from .schema_registry import OPTIONS, Registry, RegistryConverter

__all__ = ["AvroConverter", "avro_long"]

_Encode: TypeAlias = Callable[[Any], bytes]
_Write: TypeAlias = Callable[[Sequence[bytes | None]], bytes]

_LONG = (1 << 64) - 1
_SMALL = tuple(
    bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7]) for number in range(1 << 12)
)
"""The encodings of small numbers, after zigzag."""

_off = one_of("false", otherwise="not supported; leave it out")


@dataclass(frozen=True, slots=True)
class AvroConverter(RegistryConverter):
    """Writes Avro under the schema that AvroData makes; ``at`` says for which half of which topic."""

    options: ClassVar[tuple[Setting, ...]] = (
        *OPTIONS,
        honoured("scrub.invalid.names", "change names that Avro forbids", "false", boolean),
        honoured("connect.meta.data", "keep Connect's names, versions, parameters", "true", boolean),
        honoured(
            "enhanced.avro.schema.support",
            "no effect: columns have no Avro enums, and namespaces are kept anyway",
            "false",
            boolean,
        ),
        honoured("generalized.sum.type.support", "no effect: no unions", "false", boolean),
        honoured("flatten.singleton.unions", "for reading only", "true", boolean),
        honoured("allow.optional.map.keys", "no effect: map keys", "false", boolean),
        honoured("ignore.default.for.nullables", "no effect: no defaults", "false", boolean),
        honoured("discard.type.doc.default", "leave out docs", "false", _off),
        honoured("avro.use.logical.type.converters", "Java objects", "false", _off),
    )

    names: AvroNames

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> AvroConverter:
        """The converter with these options. Raises ValueError when one is missing or they contradict each other."""
        names = AvroNames(scrub=options["scrub.invalid.names"], meta=options["connect.meta.data"])
        return cls(Registry.read(options), names)

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``; null is no bytes. Raises ValueError for names that Avro forbids.

        The function also raises Unreachable and ConfigError of the registry.
        """
        if node is None:
            return lambda _: None
        schema = avro_schema(node.schema, self.names)
        named = record_name(node.schema, self.names)
        frame = self.frame(schema, "AVRO", lambda other: _alike(schema, other), named)
        write = _of_row(node, positions, alone=True)
        is_null = _null(node, positions)

        def render(raw: Sequence[bytes | None]) -> bytes | None:
            return None if is_null(raw) else frame() + write(raw)

        return render


def _null(node: Node, positions: Mapping[str, int]) -> Callable[[Sequence[bytes | None]], bool]:
    if isinstance(node, StructNode):
        return null_test(node.when, positions) if node.when else lambda _: False
    if isinstance(node, Constant):
        return lambda _: node.value is None
    position, convert = positions[node.column], writer_of(node, lambda _: b"", None)
    quick = node.kind is not Kind.CONVERTED and not node.steps
    return lambda raw: (value := raw[position]) is None or (not quick and convert(value) is None)


def _encoder(node: Node, *, alone: bool) -> Callable[[Any], bytes]:
    """How values of a column are encoded.

    Bytes that stand ``alone`` and can't be null have no length before them, as KafkaAvroSerializer writes them.
    """
    assert not isinstance(node, StructNode)
    encode = _value_encoder(node.schema, node.java)
    if alone and node.schema.type is Type.BYTES and not node.schema.optional:
        return decimal_bytes(node.schema) if node.schema.name == DECIMAL else bytes
    return encode


def _of_row(node: Node, positions: Mapping[str, int], *, alone: bool = False) -> _Write:
    if isinstance(node, StructNode):
        return _struct(node, positions)
    encode = _encoder(node, alone=alone)
    if isinstance(node, Constant):
        constant = _nullable(node.schema, encode)(node.value)
        return lambda _: constant
    position, write = positions[node.column], _cell(node, encode)
    return lambda raw: write(raw[position])


def _struct(node: StructNode, positions: Mapping[str, int]) -> _Write:
    members = [_of_row(member, positions) for member in node.members]

    def write(raw: Sequence[bytes | None]) -> bytes:
        return b"".join([member(raw) for member in members])

    if not node.schema.optional:
        return write
    if node.when is None:
        return lambda raw: b"\2" + write(raw)
    is_null = null_test(node.when, positions)
    return lambda raw: b"\0" if is_null(raw) else b"\2" + write(raw)


def _cell(cell: Cell, encode: Callable[[Any], bytes]) -> Callable[[bytes | None], bytes]:
    """Raw bytes of the cell's column → Avro; under a schema that is optional with its place in the union."""
    convert: Callable[[bytes], bytes | None] = writer_of(cell, encode, None)
    if not cell.steps and cell.kind is Kind.TEXT:
        convert = _text
    elif not cell.steps and cell.kind is Kind.INTEGER:
        convert = _integer
    if cell.schema.optional:
        return lambda raw: b"\0" if raw is None or (made := convert(raw)) is None else b"\2" + made
    return lambda raw: _required(None if raw is None else convert(raw), cell.column)


def _required(made: bytes | None, column: str) -> bytes:
    if made is None:
        raise RowError(f"column {column}: is null under a schema that is not optional")
    return made


def _text(raw: bytes) -> bytes:
    return avro_long(len(raw)) + raw


def _integer(raw: bytes) -> bytes:
    return avro_long(int(raw))


def _alike(ours: str, other: str) -> bool:
    """Whether both schemas are written alike: names, types, order; not properties, documentation and defaults."""
    return bool(_form(json.loads(ours)) == _form(json.loads(other)))


def _form(schema: Any) -> Any:
    """Avro's parsing canonical form: only the parts of a schema that decide the bytes."""
    if isinstance(schema, list):
        return [_form(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: schema[name] for name in ("type", "name", "size", "symbols") if name in schema}
    for name in ("items", "values", "type"):
        if name in schema:
            kept[name] = _form(schema[name])
    if "fields" in schema:
        kept["fields"] = [_form(item) for item in schema["fields"]]
    return kept["type"] if len(kept) == 1 and isinstance(kept.get("type"), str) else kept


def avro_long(number: int) -> bytes:
    """An int or long: zigzag, then seven bits a byte, least significant first."""
    number = number << 1 if number >= 0 else ~(number << 1)
    if number < 1 << 12:
        return _SMALL[number]
    if number > _LONG:
        number &= _LONG
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _counted(value: bytes) -> bytes:
    return avro_long(len(value)) + value


def _value_encoder(schema: Schema, java: Java) -> _Encode:
    """Encodes values of ``java`` that are not null. Raises ValueError for a class that does not go with the schema."""
    if schema.name == DECIMAL and java is Java.DECIMAL:
        unscaled = decimal_bytes(schema)
        return lambda value: _counted(unscaled(value))
    if (number := time_number(schema, java)) is not None:
        return lambda value: avro_long(number(value))
    if java_of(schema) is not java:
        raise ValueError(f"can't write {java.value} under a schema of type {schema.type.name}; Connect refuses it too")
    if schema.type is Type.ARRAY:
        return _array(schema)
    if schema.type is Type.MAP:
        return _map(schema)
    if schema.type is Type.STRUCT:
        return _struct_value(schema)
    return _PLAIN[java]


def _nullable(schema: Schema, encode: _Encode) -> _Encode:
    """``encode``, inside of a union with null where ``schema`` is optional: also for None."""
    if not schema.optional:
        return encode
    return lambda value: b"\0" if value is None else b"\2" + encode(value)


def _part(schema: Schema | None) -> _Encode:
    assert schema is not None
    return _nullable(schema, _value_encoder(schema, java_of(schema)))


def _array(schema: Schema) -> _Encode:
    encode = _part(schema.values)
    return lambda values: avro_long(len(values)) + b"".join(map(encode, values)) + b"\0" if values else b"\0"


def _map(schema: Schema) -> _Encode:
    key, value = _part(schema.keys), _part(schema.values)

    def encode(items: Mapping[Any, Any]) -> bytes:
        if not items:
            return b"\0"
        return avro_long(len(items)) + b"".join(key(name) + value(item) for name, item in items.items()) + b"\0"

    return encode


def _struct_value(schema: Schema) -> _Encode:
    parts = [_part(item.schema) for item in schema.fields]

    def encode(values: Sequence[Any]) -> bytes:
        return b"".join(part(value) for part, value in zip(parts, values, strict=True))

    return encode


_PLAIN: Mapping[Java, _Encode] = {
    Java.BOOLEAN: lambda value: b"\1" if value else b"\0",
    Java.BYTE: avro_long,
    Java.SHORT: avro_long,
    Java.INTEGER: avro_long,
    Java.LONG: avro_long,
    Java.FLOAT: struct.Struct("<f").pack,
    Java.DOUBLE: struct.Struct("<d").pack,
    Java.STRING: lambda value: _counted(value.encode()),
    Java.BYTES: _counted,
}
