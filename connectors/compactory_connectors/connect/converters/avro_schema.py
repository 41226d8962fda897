"""Connect schema → Avro schema, as ``AvroData`` of Confluent's avro-converter 8.1 makes it and Avro 1.12 writes it.

The order of names in the text is Avro's, so that a registry finds what the real converter has registered.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

from ..record.schema import DATE, DECIMAL, TIME, TIMESTAMP, Schema, Type

__all__ = ["AvroNames", "avro_schema", "record_name", "without_logical_types"]

_NAMESPACE = "io.confluent.connect.avro"
_PRECISION = 64
"""``CONNECT_AVRO_DECIMAL_PRECISION_DEFAULT``."""

_PRIMITIVES = {
    Type.INT8: "int",
    Type.INT16: "int",
    Type.INT32: "int",
    Type.INT64: "long",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
    Type.BOOLEAN: "boolean",
    Type.STRING: "string",
    Type.BYTES: "bytes",
}
_LOGICAL = {TIME: "time-millis", TIMESTAMP: "timestamp-millis", DATE: "date"}


@dataclass(frozen=True, slots=True)
class AvroNames:
    """The rules for names. ``scrub``: names that Avro forbids are changed; ``meta``: Connect's properties are kept."""

    scrub: bool = False
    meta: bool = True

    def name(self, name: str) -> str:
        """Return a name that Avro accepts. Raises ValueError for a name that it forbids."""
        if self.scrub:
            name = _scrubbed(name)
        if not _is_name(name):
            raise ValueError(f"{name!r} is no name in Avro; set scrub.invalid.names=true, or rename it by a transform")
        return name

    def full(self, name: str) -> tuple[str | None, str]:
        """Return namespace and name of a record; Avro accepts any namespace."""
        *space, last = name.rstrip(".").split(".")
        return ".".join(map(_scrubbed, space) if self.scrub else space) or None, self.name(last)


def _scrubbed(name: str) -> str:
    """Return ``doScrubName``: quoted as in an address, then with underscores; an x before a digit."""
    name = re.sub("[^A-Za-z0-9_]", "_", quote_plus(name, safe="*").replace("~", "%7E"))
    return f"x{name}" if name[:1].isdecimal() else name


def _is_name(name: str) -> bool:
    """Return True for letters, digits and underscores that are 16-bit characters of Java, the first no digit."""
    if not name or name[0].isdecimal():
        return False
    return all(c == "_" or (c <= "\uffff" and (c.isalpha() or c.isdecimal())) for c in name)


def avro_schema(schema: Schema, names: AvroNames) -> str:
    """Return the text of the Avro schema. Raises ValueError for names that Avro forbids, or that two records share."""
    return json.dumps(_Writer(names).of(schema, None), separators=(",", ":"), ensure_ascii=False)


def record_name(schema: Schema, names: AvroNames) -> str | None:
    """Return the full name of the record that ``schema`` becomes; None for a schema that becomes no record."""
    if schema.type is not Type.STRUCT or schema.optional:
        return None
    space, name = (_NAMESPACE, "ConnectDefault") if schema.name is None else names.full(schema.name)
    return f"{space}.{name}" if space else name


def without_logical_types(schema: Any) -> Any:
    """Return the schema without logical types, because those of fastavro have only the years 1 to 9999."""
    if isinstance(schema, dict):
        return {name: without_logical_types(item) for name, item in schema.items() if name != "logicalType"}
    return [*map(without_logical_types, schema)] if isinstance(schema, list) else schema


@dataclass(slots=True)
class _Writer:
    """A walk over a schema, which keeps the names of its records."""

    names: AvroNames
    named: dict[Schema, tuple[str | None, str]] = field(default_factory=dict)
    unnamed: int = 0

    def of(self, schema: Schema, space: str | None) -> Any:
        """Return JSON of the schema within namespace ``space``."""
        required = self._required(schema.as_optional(False), space)
        return ["null", required] if schema.optional else required

    def _required(self, schema: Schema, space: str | None) -> Any:
        if schema.type is Type.STRUCT:
            return self._record(schema, space)
        primitive = self._with_properties({"type": _PRIMITIVES[schema.type]}, schema)
        return primitive["type"] if len(primitive) == 1 else primitive

    def _record(self, schema: Schema, space: str | None) -> Any:
        if schema in self.named:
            record_space, name = self.named[schema]
            return name if record_space == space else f"{record_space}.{name}"
        own_space, name = self._name(schema)
        if (own_space, name) in self.named.values():
            raise ValueError(f"two structs of different schemas are called {schema.name}; rename one by a transform")
        self.named[schema] = own_space, name
        document: dict[str, Any] = {"type": "record", "name": name}
        if own_space != space:
            document["namespace"] = own_space or ""
        document["fields"] = [self._field(item.name, item.schema, own_space) for item in schema.fields]
        return self._with_properties(document, schema)

    def _name(self, schema: Schema) -> tuple[str | None, str]:
        if schema.name is not None:
            return self.names.full(schema.name)
        self.unnamed += 1
        return _NAMESPACE, f"ConnectDefault{self.unnamed if self.unnamed > 1 else ''}"

    def _field(self, name: str, schema: Schema, space: str | None) -> dict[str, Any]:
        document = {"name": self.names.name(name), "type": self.of(schema, space)}
        return {**document, "default": None} if schema.optional else document

    def _with_properties(self, document: dict[str, Any], schema: Schema) -> dict[str, Any]:
        parameters = dict(schema.parameters)
        if schema.name == DECIMAL:
            document["scale"] = int(parameters.get("scale", 0))
            document["precision"] = int(parameters.get("connect.decimal.precision", _PRECISION))
        if self.names.meta:
            document |= _connect_properties(schema, parameters)
        if schema.name == DECIMAL:
            legacy = "connect.decimal.precision" in parameters or not 0 <= document["scale"] <= document["precision"]
            if legacy or document["precision"] > 0:
                document["logicalType"] = "decimal"
        elif schema.name in _LOGICAL:
            document["logicalType"] = _LOGICAL[schema.name]
        return document


def _connect_properties(schema: Schema, parameters: dict[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if schema.doc is not None:
        document["connect.doc"] = schema.doc
    if schema.version is not None:
        document["connect.version"] = schema.version
    if parameters:
        document["connect.parameters"] = parameters
    if schema.name is not None:
        document["connect.name"] = schema.name
    if schema.type in {Type.INT8, Type.INT16}:
        document["connect.type"] = schema.type.value
    return document
