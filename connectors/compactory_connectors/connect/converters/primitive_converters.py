"""``ByteArrayConverter`` and the converters of one primitive each (org.apache.kafka.connect.converters).

Each writes values of its Java class as Kafka's serializers do, big-endian and of fixed length, and refuses all other
classes; null is no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..record.record import Java, Node, StructNode
from ..record.row_value import row_reader
from ..record.schema import Type
from ..setting import Setting
from .converter import SCHEMAS_ENABLE, Converter, Render

__all__ = ["PRIMITIVES", "PrimitiveConverter"]

_REMEDY = "choose another converter, or a transform that makes one value of it (ExtractField, Cast)"


@dataclass(frozen=True, slots=True)
class PrimitiveConverter(Converter):
    """Writes values of ``java``; ``type`` is the type that Connect requires of the schema, None for any."""

    options: ClassVar[tuple[Setting, ...]] = (SCHEMAS_ENABLE,)

    name: str
    java: Java
    bytes_of: Callable[[Any], bytes]
    """Kafka's serializer."""
    type: Type | None = None

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """Return the function that writes ``node``. Raises ValueError for a record of another class."""
        if node is None:
            return lambda _: None
        if isinstance(node, StructNode):
            raise ValueError(f"{self.name} writes {self.java.value}, not a struct; {_REMEDY}")
        if node.java is not self.java or self.type not in {None, node.schema.type}:
            actual = f"{node.java.value} under a schema of type {node.schema.type.name}"
            raise ValueError(f"{self.name} writes {self.java.value}, not {actual}; {_REMEDY}")
        return row_reader(node, positions, lambda *_: self.bytes_of, lambda _: b"".join)


PRIMITIVES: Mapping[str, PrimitiveConverter] = {
    f"org.apache.kafka.connect.converters.{converter.name}": converter
    for converter in (
        PrimitiveConverter("ByteArrayConverter", Java.BYTES, bytes, Type.BYTES),
        PrimitiveConverter("BooleanConverter", Java.BOOLEAN, struct.Struct(">?").pack, Type.BOOLEAN),
        PrimitiveConverter("ShortConverter", Java.SHORT, struct.Struct(">h").pack),
        PrimitiveConverter("IntegerConverter", Java.INTEGER, struct.Struct(">i").pack),
        PrimitiveConverter("LongConverter", Java.LONG, struct.Struct(">q").pack),
        PrimitiveConverter("FloatConverter", Java.FLOAT, struct.Struct(">f").pack),
        PrimitiveConverter("DoubleConverter", Java.DOUBLE, struct.Struct(">d").pack),
    )
}
"""The converters by their Java class names."""
