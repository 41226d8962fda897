"""``io.confluent.connect.avro.AvroConverter``: Avro in the registry's wire format, compiled once per table.

A record is a zero byte, the schema's id in four bytes and the value in Avro's binary encoding. The registry is asked
for the id at the first record of a table.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from ...setting import Setting, boolean, one_of
from ..record import Cell, Constant, Kind, Node, RowError, StructNode, null_test, writer_of
from ..schema import DECIMAL, Type
from .avro_schema import AvroNames, avro_schema, record_name
from .avro_value import avro_long, encoder, nullable
from .converter import Half, Render
from .json_value import decimal_bytes
from .schema_registry import OPTIONS, Registry, Subject

__all__ = ["AvroConverter", "framed"]

_Write: TypeAlias = Callable[[Sequence[bytes | None]], bytes]

_off = one_of("false", otherwise="not supported; leave it out")


@dataclass(frozen=True, slots=True)
class AvroConverter:
    """Writes Avro under the schema that AvroData makes; ``at`` says for which half of which topic."""

    options: ClassVar[tuple[Setting, ...]] = (
        *OPTIONS,
        Setting(name="scrub.invalid.names", meaning="change names that Avro forbids", default="false", parse=boolean),
        Setting(
            name="connect.meta.data",
            meaning="keep Connect's names, versions, parameters",
            default="true",
            parse=boolean,
        ),
        Setting(
            name="enhanced.avro.schema.support",
            meaning="no effect: columns have no Avro enums, and namespaces are kept anyway",
            default="false",
            parse=boolean,
        ),
        Setting(name="generalized.sum.type.support", meaning="no effect: no unions", default="false", parse=boolean),
        Setting(name="flatten.singleton.unions", meaning="for reading only", default="true", parse=boolean),
        Setting(name="allow.optional.map.keys", meaning="no effect: map keys", default="false", parse=boolean),
        Setting(name="ignore.default.for.nullables", meaning="no effect: no defaults", default="false", parse=boolean),
        Setting(name="discard.type.doc.default", meaning="leave out docs", default="false", parse=_off),
        Setting(name="avro.use.logical.type.converters", meaning="Java objects", default="false", parse=_off),
    )

    registry: Registry
    names: AvroNames
    topic: str = ""
    half: Half = "value"

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> AvroConverter:
        """The converter with these options. Raises ValueError when one is missing or they contradict each other."""
        names = AvroNames(scrub=options["scrub.invalid.names"], meta=options["connect.meta.data"])
        return cls(Registry.read(options), names)

    def at(self, topic: str, half: Half) -> AvroConverter:
        """The converter for keys or values of one topic."""
        return replace(self, topic=topic, half=half)

    def dry(self) -> AvroConverter:
        """The converter for a dry run: it registers nothing; an id not yet given shows as 0."""
        return replace(self, registry=replace(self.registry, dry=True))

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``; null is no bytes. Raises ValueError for names that Avro forbids.

        The function also raises Unreachable and ConfigError of the registry.
        """
        if node is None:
            return lambda _: None
        schema = avro_schema(node.schema, self.names)
        subject = Subject(topic=self.topic, half=self.half, record=record_name(node.schema, self.names))
        subject.name(self.registry.strategies[self.half])  # a strategy that needs a record fails now
        frame = framed(lambda: self.registry.schema_id(subject, schema, "AVRO", lambda other: _alike(schema, other)))
        write = _of_row(node, positions, alone=True)
        is_null = _null(node, positions)

        def render(raw: Sequence[bytes | None]) -> bytes | None:
            return None if is_null(raw) else frame() + write(raw)

        return render


def framed(schema_id: Callable[[], int]) -> Callable[[], bytes]:
    """The zero byte and the id that stand before each value; asks for the id once."""
    frames: list[bytes] = []

    def frame() -> bytes:
        if not frames:
            frames.append(struct.pack(">bI", 0, schema_id()))
        return frames[0]

    return frame


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
    encode = encoder(node.schema, node.java)
    if alone and node.schema.type is Type.BYTES and not node.schema.optional:
        return decimal_bytes(node.schema) if node.schema.name == DECIMAL else bytes
    return encode


def _of_row(node: Node, positions: Mapping[str, int], *, alone: bool = False) -> _Write:
    if isinstance(node, StructNode):
        return _struct(node, positions)
    encode = _encoder(node, alone=alone)
    if isinstance(node, Constant):
        constant = nullable(node.schema, encode)(node.value)
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
    """As Avro's parsing canonical form: what decides the bytes."""
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
