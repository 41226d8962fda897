"""Connect values and schemas → JSON as Jackson writes it: no blanks, as few escapes as JSON allows.

Values go by their schema, as in ``JsonConverter.convertToJson`` of Kafka Connect 4.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from ..javatext.java_number import double_text_of, float_text_of
from ..record.record import WHOLES, Java, RowError
from ..record.row_value import refuse_misfit, time_number
from ..record.schema import DECIMAL, Schema, Type

__all__ = [
    "base64_of",
    "decimal_bytes",
    "finite",
    "integer_bytes",
    "json_string",
    "scale_of",
    "schema_json",
    "value_writer",
]

_Write: TypeAlias = Callable[[Any], bytes]
"""The function from a value that is not null to JSON. Raises RowError for a value that Java refuses."""

_ESCAPED = re.compile(r'[\x00-\x1f"\\\U00010000-\U0010ffff]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def json_string(text: str) -> bytes:
    """Return ``text`` in quotes, escaped as by Jackson's UTF8JsonGenerator: upper-case hex, surrogate pairs escaped."""
    return b'"' + _ESCAPED.sub(_escape, text).encode() + b'"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def finite(text: bytes) -> bytes:
    """Return a number's text. Jackson quotes NaN and the infinities, which are no numbers in JSON."""
    return b'"%b"' % text if text[-1] in b"Ny" else text


def schema_json(schema: Schema, field: str | None = None) -> bytes:
    """Return the schema as ``JsonConverter.asJsonSchema`` writes it; ``field`` is the name of the member."""
    parts = [b'"type":' + json_string(schema.type.value)]
    if schema.type is Type.STRUCT:
        parts.append(b'"fields":[' + b",".join(schema_json(item.schema, item.name) for item in schema.fields) + b"]")
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


def value_writer(schema: Schema, java: Java, *, numeric: bool = False) -> _Write:
    """Return the function that writes values of ``java``. ``numeric``: Decimal as a number, not as Base64.

    Raises ValueError where Java refuses every value of the class under ``schema``.
    """
    refuse_misfit(schema, java)
    if schema.name == DECIMAL and numeric:
        return lambda value: str(value).encode()  # Python and Java share the rules of scientific notation
    if schema.name == DECIMAL:
        encode = decimal_bytes(schema)
        return lambda value: base64_of(encode(value))
    if (number := time_number(schema, java)) is not None:
        return lambda value: b"%d" % number(value)
    return _PLAIN[java]


def scale_of(schema: Schema) -> int:
    """Return the scale of a Decimal schema."""
    return int(dict(schema.parameters).get("scale", 0))


def decimal_bytes(schema: Schema) -> Callable[[Decimal], bytes]:
    """Return the function from a decimal to its unscaled value, as :func:`integer_bytes`.

    The function raises RowError for a number whose scale is not the schema's.
    """
    scale = scale_of(schema)

    def encode(value: Decimal) -> bytes:
        sign, digits, exponent = value.as_tuple()
        if exponent != -scale:
            raise RowError("the number's scale is not that of its Decimal schema")
        return integer_bytes(int(Decimal((sign, digits, 0))))

    return encode


def integer_bytes(number: int) -> bytes:
    """Return two's complement with as few bytes as possible (``BigInteger.toByteArray``)."""
    bits = number if number >= 0 else ~number
    return number.to_bytes(bits.bit_length() // 8 + 1, "big", signed=True)


def base64_of(value: bytes) -> bytes:
    """Return ``value`` as a JSON text in Base64."""
    return b'"%b"' % b64encode(value)


_PLAIN: Mapping[Java, _Write] = {
    Java.BOOLEAN: lambda value: b"true" if value else b"false",
    **dict.fromkeys(WHOLES, b"%d".__mod__),
    Java.FLOAT: lambda value: finite(float_text_of(value)),
    Java.DOUBLE: lambda value: finite(double_text_of(value)),
    Java.STRING: json_string,
    Java.BYTES: base64_of,
}
