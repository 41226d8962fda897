"""Text as Jackson writes it: no blanks, as few escapes as JSON allows, but surrogate pairs escaped."""

from __future__ import annotations

import re

from ..schema import Schema, Type

__all__ = ["finite", "json_string", "schema_json"]

_ESCAPED = re.compile(r'[\x00-\x1f"\\\U00010000-\U0010ffff]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def json_string(text: str) -> bytes:
    """``text`` in quotes, escaped as Jackson's UTF8JsonGenerator does: upper-case hex, surrogate pairs escaped."""
    return b'"' + _ESCAPED.sub(_escape, text).encode() + b'"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def finite(text: bytes) -> bytes:
    """A number's text; NaN and the infinities are no numbers in JSON, so Jackson quotes them."""
    return b'"%b"' % text if text[-1] in b"Ny" else text


def schema_json(schema: Schema, field: str | None = None) -> bytes:
    """The schema as ``JsonConverter.asJsonSchema`` writes it; ``field`` is the name of the member that has it."""
    parts = [b'"type":' + json_string(schema.type.value)]
    if schema.type is Type.STRUCT:
        parts.append(b'"fields":[' + b",".join(schema_json(item.schema, item.name) for item in schema.fields) + b"]")
    if schema.keys is not None:
        parts.append(b'"keys":' + schema_json(schema.keys))
    if schema.values is not None:
        parts.append((b'"values":' if schema.keys else b'"items":') + schema_json(schema.values))
    parts.append(b'"optional":' + (b"true" if schema.optional else b"false"))
    if schema.name is not None:
        parts.append(b'"name":' + json_string(schema.name))
    if schema.version is not None:
        parts.append(b'"version":%d' % schema.version)
    if schema.doc is not None:
        parts.append(b'"doc":' + json_string(schema.doc))
    if schema.parameters:
        parameters = (json_string(name) + b":" + json_string(value) for name, value in schema.parameters)
        parts.append(b'"parameters":{' + b",".join(parameters) + b"}")
    if field is not None:
        parts.append(b'"field":' + json_string(field))
    return b"{" + b",".join(parts) + b"}"
