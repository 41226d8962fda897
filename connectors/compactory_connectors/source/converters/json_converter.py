"""``org.apache.kafka.connect.json.JsonConverter``, as Jackson writes it: no blanks, ASCII escapes as few as possible.

Most columns go straight from Postgres' text to JSON; ``Cell.decode`` and the steps are used only where a value has to
be looked at.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import call, itemgetter
from typing import Any, ClassVar, TypeAlias, cast

from ..column_value import decode_bytea, decode_time, decode_timestamp
from ..java_calendar import MILLIS_PER_DAY
from ..java_number import double_text, double_text_of, float_text, float_text_of
from ..record import Cell, Constant, Java, Kind, Node, RowError, StructNode, short_cut, writer_of
from ..schema import DATE, TIME, Schema, Type
from ..setting import Setting, at_least, boolean, one_of
from .converter import Render

__all__ = ["JsonConverter", "json_string"]

_Write: TypeAlias = Callable[[bytes | None], bytes]

_call = cast("Callable[[_Write, bytes | None], bytes]", call)

_NEEDS_CARE = re.compile(rb'[\x00-\x1f"\\\xf0-\xf7]').search
_ESCAPED = re.compile(r'[\x00-\x1f"\\\U00010000-\U0010ffff]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


@dataclass(frozen=True, slots=True)
class JsonConverter:
    """Writes JSON, with the schema around it when ``schemas_enable``."""

    options: ClassVar[tuple[Setting, ...]] = (
        Setting(name="schemas.enable", meaning="write the schema with every record", default="true", parse=boolean),
        Setting(
            name="schemas.cache.size",
            meaning="schemas that Java keeps; nothing is kept here",
            default="1000",
            parse=at_least(0),
        ),
        Setting(
            name="decimal.format",
            meaning="how Decimal is written",
            default="BASE64",
            parse=one_of("BASE64", "base64", otherwise="NUMERIC is not supported yet"),
        ),
        Setting(
            name="replace.null.with.default",
            meaning="columns have no default in a schema",
            default="true",
            parse=boolean,
        ),
    )

    schemas_enable: bool

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> JsonConverter:
        """The converter with these options."""
        return cls(options["schemas.enable"])

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """The function that writes ``node``; no key is no bytes, but a key that is null is ``null``."""
        if node is None:
            return lambda _: None
        parts = _Parts()
        if self.schemas_enable:
            parts.literal(b'{"schema":' + schema_json(node.schema) + b',"payload":')
        parts.node(node, positions)
        if self.schemas_enable:
            parts.literal(b"}")
        return parts.render()


class _Parts:
    """Collects a template with its gaps while a node is walked, then makes one function of them."""

    def __init__(self) -> None:
        self._template = b""
        self._positions: list[int] = []
        self._writers: list[_Write] = []

    def literal(self, text: bytes) -> None:
        """Text that is the same in every row."""
        self._template += text.replace(b"%", b"%%")

    def node(self, node: Node, positions: Mapping[str, int]) -> None:
        """A value of the row, or a struct of them."""
        if isinstance(node, StructNode):
            for index, (field, member) in enumerate(zip(node.schema.fields, node.members, strict=True)):
                self.literal((b"," if index else b"{") + json_string(field.name) + b":")
                self.node(member, positions)
            self.literal(b"}" if node.members else b"{}")
        elif isinstance(node, Constant):
            self.literal(_constant(node))
        else:
            self._template += b"%b"
            self._positions.append(positions[node.column])
            self._writers.append(_writer(node))

    def render(self) -> Render:
        """The function of a row."""
        template, writers, positions = self._template, tuple(self._writers), tuple(self._positions)
        if not writers:
            constant = template % ()
            return lambda _: constant
        if len(writers) == 1:
            writer, position = writers[0], positions[0]
            return lambda raw: template % writer(raw[position])
        if positions == tuple(range(len(positions))):
            # map() stops at the last writer, so raw may go on
            return lambda raw: template % tuple(map(_call, writers, raw))
        pick: Callable[[Sequence[bytes | None]], tuple[bytes | None, ...]] = itemgetter(*positions)
        return lambda raw: template % tuple(map(_call, writers, pick(raw)))


def json_string(text: str) -> bytes:
    """``text`` in quotes, escaped as Jackson's UTF8JsonGenerator does: upper-case hex, surrogate pairs escaped."""
    return b'"' + _ESCAPED.sub(_escape, text).encode() + b'"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _text(raw: bytes | None) -> bytes:
    if raw is None:
        return b"null"
    if _NEEDS_CARE(raw) is None:
        return b'"%b"' % raw
    return json_string(raw.decode())


def _integer(raw: bytes | None) -> bytes:
    return raw or b"null"


def _number(text_of: Callable[[bytes], bytes]) -> _Write:
    def write(raw: bytes | None) -> bytes:
        return b"null" if raw is None else _finite(text_of(raw))

    return write


def _finite(text: bytes) -> bytes:
    """NaN and the infinities are no numbers in JSON; Jackson quotes them."""
    return b'"%b"' % text if text[-1] in b"Ny" else text


def _bytea(raw: bytes | None) -> bytes:
    return b"null" if raw is None else b'"%b"' % b64encode(decode_bytea(raw))


def _time(raw: bytes | None) -> bytes:
    return b"null" if raw is None else b"%d" % decode_time(raw)


def _timestamp(raw: bytes | None) -> bytes:
    return b"null" if raw is None else b"%d" % (decode_timestamp(raw) // 1000)


_INT32 = 1 << 31
"""Date.fromLogical casts to int: what 'infinity' becomes wraps around."""

_BOOLEANS: Mapping[bytes | None, bytes] = {b"t": b"true", b"f": b"false", None: b"null"}

_DIRECT: Mapping[Kind, _Write] = {
    Kind.BOOLEAN: _BOOLEANS.__getitem__,
    Kind.INTEGER: _integer,
    Kind.FLOAT32: _number(float_text),
    Kind.FLOAT64: _number(double_text),
    Kind.TEXT: _text,
    Kind.BYTEA: _bytea,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamp,
}


def _writer(cell: Cell) -> _Write:
    """Raw bytes of the cell's column → JSON."""
    if not cell.steps and cell.kind in _DIRECT:
        return _DIRECT[cell.kind]
    convert = writer_of(cell, _to_json(cell.schema, cell.java))
    plain = short_cut(cell) if cell.java is Java.STRING else None
    if plain is None:
        return lambda raw: b"null" if raw is None else convert(raw)
    quick = plain

    def quoted(raw: bytes | None) -> bytes:
        if raw is None:
            return b"null"
        text = quick(raw)
        return convert(raw) if text is None else b'"%b"' % text

    return quoted


def _constant(node: Constant) -> bytes:
    return b"null" if node.value is None else _to_json(node.schema, node.java)(node.value)


def _to_json(schema: Schema, java: Java) -> Callable[[Any], bytes]:
    """Value → JSON, by its logical type first, as ``convertToJson`` decides."""
    if schema.name == DATE:
        return _date
    if schema.name == TIME:
        return _time_of_day
    if java is Java.SQL_TIMESTAMP:
        return lambda micros: b"%d" % (micros // 1000)
    return _TO_JSON[java]


def _date(millis: int) -> bytes:
    days, rest = divmod(millis, MILLIS_PER_DAY)
    if rest:
        raise RowError("Connect's Date takes whole days only")
    return b"%d" % ((days + _INT32) % (2 * _INT32) - _INT32)


def _time_of_day(millis: int) -> bytes:
    if not 0 <= millis <= MILLIS_PER_DAY:
        raise RowError("Connect's Time takes times of one day only; in UTC this one falls on another")
    return b"%d" % millis


def _decimal(value: Decimal) -> bytes:
    """Base64 of the unscaled value in two's complement, with as few bytes as possible (``BigInteger.toByteArray``)."""
    sign, digits, exponent = value.as_tuple()
    del exponent
    unscaled = int(Decimal((sign, digits, 0)))
    bits = unscaled if unscaled >= 0 else ~unscaled
    return b'"%b"' % b64encode(unscaled.to_bytes(bits.bit_length() // 8 + 1, "big", signed=True))


def _whole(value: int) -> bytes:
    return b"%d" % value


_TO_JSON: Mapping[Java, Callable[[Any], bytes]] = {
    Java.BOOLEAN: lambda value: b"true" if value else b"false",
    Java.BYTE: _whole,
    Java.SHORT: _whole,
    Java.INTEGER: _whole,
    Java.LONG: _whole,
    Java.FLOAT: lambda value: _finite(float_text_of(value)),
    Java.DOUBLE: lambda value: _finite(double_text_of(value)),
    Java.STRING: json_string,
    Java.BYTES: lambda value: b'"%b"' % b64encode(value),
    Java.DECIMAL: _decimal,
    Java.SQL_DATE: _whole,
    Java.SQL_TIME: _whole,
    Java.DATE: _whole,
}


def schema_json(schema: Schema, field: str | None = None) -> bytes:
    """The schema as ``JsonConverter.asJsonSchema`` writes it; ``field`` is the name of the member that has it."""
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
