"""``io.confluent.connect.json.JsonSchemaConverter``: JSON in the registry's wire format, with a JSON Schema of it.

A record is a zero byte, the schema's id in four bytes and the value as JsonConverter writes it. The schema is the one
that ``JsonSchemaData`` of Confluent's json-schema-converter 8.1 makes, its names in another order: Java's is that of
a hash table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..record.record import Node
from ..record.schema import DECIMAL, Schema, Type
from ..setting import Setting, boolean, honoured
from .converter import Render
from .json_converter import DECIMAL_FORMAT, JsonConverter
from .schema_registry import OPTIONS, Registry, RegistryConverter

__all__ = ["JsonSchemaConverter", "json_schema"]

_INTEGERS = {Type.INT8, Type.INT16, Type.INT32, Type.INT64}
_NUMBERS = {Type.FLOAT32: "float32", Type.FLOAT64: "float64"}


@dataclass(frozen=True, slots=True)
class JsonSchemaConverter(RegistryConverter):
    """Writes JSON under a JSON Schema, for the half and topic of ``at``."""

    options: ClassVar[tuple[Setting, ...]] = (
        *OPTIONS,
        DECIMAL_FORMAT,
        honoured("object.additional.properties", "allow names not in the schema", "true", boolean),
        honoured("use.optional.for.nonrequired", "for reading only", "false", boolean),
        honoured("generalized.sum.type.support", "no effect: no unions", "false", boolean),
        honoured("ignore.default.for.nullables", "no effect: no defaults", "false", boolean),
        honoured("json.fail.invalid.schema", "no effect: schemas are valid", "true", boolean),
    )

    numeric: bool
    additional: bool

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        numeric = options["decimal.format"] == "NUMERIC"
        return cls(Registry.read(options), numeric, options["object.additional.properties"])

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """Return the function that writes ``node``; no key is no bytes, but a key that is null is ``null``.

        Raises ValueError like JsonConverter; the function also raises Unreachable and ConfigError of the registry.
        """
        if node is None:
            return lambda _: None
        write = JsonConverter(schemas_enable=False, numeric=self.numeric, embeds=False).compile(node, positions)
        document = json_schema(node.schema, numeric=self.numeric, additional=self.additional)
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        record_name = node.schema.name if not node.schema.optional else None
        frame = self.frame(text, "JSON", lambda registered: bool(json.loads(registered) == document), record_name)

        def render(raw: Sequence[bytes | None]) -> bytes | None:
            value = write(raw)
            return None if value is None else frame() + value

        return render


def json_schema(
    schema: Schema, index: int | None = None, *, numeric: bool = False, additional: bool = True
) -> dict[str, Any]:
    """Return the JSON Schema; ``index`` is that of the member whose schema it is."""
    document = _required(schema, numeric=numeric, additional=additional)
    if schema.optional:
        document = {"oneOf": [{"type": "null"}, document]}
    return document if index is None else {**document, "connect.index": index}


def _required(schema: Schema, *, numeric: bool, additional: bool) -> dict[str, Any]:
    kind, connect_type = _types(schema, numeric=numeric)
    document: dict[str, Any] = {"type": kind}
    if schema.name is not None:
        document["title"] = schema.name
    if schema.doc is not None:
        document["description"] = schema.doc
    if schema.type is Type.STRUCT:
        document["properties"] = {
            item.name: json_schema(item.schema, number, numeric=numeric, additional=additional)
            for number, item in enumerate(schema.fields)
        }
        document |= {} if additional else {"additionalProperties": False}
    if schema.version is not None:
        document["connect.version"] = schema.version
    if connect_type is not None:
        document["connect.type"] = connect_type
    if schema.parameters:
        document["connect.parameters"] = dict(schema.parameters)
    return document


def _types(schema: Schema, *, numeric: bool) -> tuple[str, str | None]:
    """Return the type of JSON Schema, and Connect's where that is narrower."""
    if schema.type in _INTEGERS:
        return "integer", schema.type.value
    if schema.type in _NUMBERS:
        return "number", _NUMBERS[schema.type]
    if schema.type is Type.BYTES:
        return "number" if numeric and schema.name == DECIMAL else "string", "bytes"
    return "object" if schema.type is Type.STRUCT else schema.type.value, None
