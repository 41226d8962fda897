"""``ByteArrayConverter`` and the converters of one primitive each, as Kafka's serializers write them.

Classes: those of org.apache.kafka.connect.converters. They write a value of exactly one Java class, big-endian and of
fixed length, and refuse all others; null is no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ...setting import Setting
from ..record import Constant, Java, Node, StructNode, writer_of
from ..schema import Type
from .converter import SCHEMAS_ENABLE, Render, Topicless

__all__ = [
    "BooleanConverter",
    "ByteArrayConverter",
    "DoubleConverter",
    "FloatConverter",
    "IntegerConverter",
    "LongConverter",
    "PrimitiveConverter",
    "ShortConverter",
]


@dataclass(frozen=True, slots=True)
class PrimitiveConverter(Topicless):
    """Writes values of ``java``; ``type`` is the type that the schema must have, None where Connect asks for none."""

    options: ClassVar[tuple[Setting, ...]] = (SCHEMAS_ENABLE,)
    java: ClassVar[Java]
    type: ClassVar[Type | None] = None
    bytes_of: ClassVar[Callable[[Any], bytes]]
    """What the serializer makes of a value."""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """The converter; no option has an effect."""
        del options
        return cls()

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``. Raises ValueError for a record that is of another class."""
        if node is None:
            return lambda _: None
        if isinstance(node, StructNode):
            raise ValueError(f"{type(self).__name__} writes {self.java.value}, not a struct; {_REMEDY}")
        if node.java is not self.java or self.type not in {None, node.schema.type}:
            given = f"{node.java.value} under a schema of type {node.schema.type.name}"
            raise ValueError(f"{type(self).__name__} writes {self.java.value}, not {given}; {_REMEDY}")
        bytes_of = type(self).bytes_of
        if isinstance(node, Constant):
            constant = None if node.value is None else bytes_of(node.value)
            return lambda _: constant
        return _of_column(positions[node.column], writer_of(node, bytes_of, None))


_REMEDY = "choose another converter, or a transform that makes one value of it (ExtractField, Cast)"


def _of_column(position: int, convert: Callable[[bytes], bytes | None]) -> Render:
    def render(raw: Sequence[bytes | None]) -> bytes | None:
        value = raw[position]
        return None if value is None else convert(value)

    return render


class ByteArrayConverter(PrimitiveConverter):
    """The bytes as they are."""

    __slots__ = ()
    java = Java.BYTES
    type = Type.BYTES
    bytes_of = bytes


class BooleanConverter(PrimitiveConverter):
    """One byte, 0 or 1."""

    __slots__ = ()
    java = Java.BOOLEAN
    type = Type.BOOLEAN
    bytes_of = struct.Struct(">?").pack


class ShortConverter(PrimitiveConverter):
    """Two bytes."""

    __slots__ = ()
    java = Java.SHORT
    bytes_of = struct.Struct(">h").pack


class IntegerConverter(PrimitiveConverter):
    """Four bytes."""

    __slots__ = ()
    java = Java.INTEGER
    bytes_of = struct.Struct(">i").pack


class LongConverter(PrimitiveConverter):
    """Eight bytes."""

    __slots__ = ()
    java = Java.LONG
    bytes_of = struct.Struct(">q").pack


class FloatConverter(PrimitiveConverter):
    """The four bytes of IEEE 754."""

    __slots__ = ()
    java = Java.FLOAT
    bytes_of = struct.Struct(">f").pack


class DoubleConverter(PrimitiveConverter):
    """The eight bytes of IEEE 754."""

    __slots__ = ()
    java = Java.DOUBLE
    bytes_of = struct.Struct(">d").pack
