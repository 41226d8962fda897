"""``org.apache.kafka.connect.json.JsonConverter``, as Jackson writes it.

Most columns go from Postgres' text to JSON without decoding: ``Cell.decode`` and steps are only used where they must.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import call, itemgetter
from typing import Any, ClassVar, Self, TypeAlias, cast

from ..javatext.java_number import double_text, float_text
from ..record.column_value import decode_bytea, decode_time, decode_timestamp, is_plain, unscaled
from ..record.record import Cell, Constant, Java, Kind, Node
from ..record.row_value import Row, short_cut, writer_of
from ..record.schema import DECIMAL
from ..setting import Setting, at_least, boolean, honoured
from .converter import Converter, Render
from .json_value import base64_of, finite, integer_bytes, json_string, scale_of, schema_json, value_writer

__all__ = ["DECIMAL_FORMAT", "JsonConverter", "json_string"]

_Write: TypeAlias = Callable[[Any], bytes]
"""The function from a raw column, or None, to JSON."""

_call = cast("Callable[[_Write, bytes | None], bytes]", call)

_NEEDS_CARE = re.compile(rb'[\x00-\x1f"\\\xf0-\xf7]').search


def _decimal_format(value: str) -> str:
    if value.upper() not in {"BASE64", "NUMERIC"}:
        raise ValueError("must be BASE64 or NUMERIC")
    return value.upper()


DECIMAL_FORMAT = honoured(
    "decimal.format", "Decimal as BASE64 of its unscaled value, or as a NUMERIC literal", "BASE64", _decimal_format
)


@dataclass(frozen=True, slots=True)
class JsonConverter(Converter):
    """Writes JSON, with the schema around it when ``schemas_enable``; Decimal as a number when ``numeric``."""

    options: ClassVar[tuple[Setting, ...]] = (
        honoured("schemas.enable", "write the schema with every record", "true", boolean),
        honoured(
            "schemas.cache.size", "schemas that Java keeps; here a table's schema is made once", "1000", at_least(0)
        ),
        DECIMAL_FORMAT,
        honoured("replace.null.with.default", "no effect: columns have no default in a schema", "true", boolean),
        honoured("schema.content", "no effect: for reading only", ""),
    )

    schemas_enable: bool
    numeric: bool = False
    embeds: bool = True
    """JSON of Postgres becomes a part of a record without schema, not a text in it."""

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        return cls(options["schemas.enable"], options["decimal.format"] == "NUMERIC")

    def compile(self, node: Node | None, positions: Mapping[str, int]) -> Render:
        """Return the function that writes ``node``; no key is no bytes, but a key that is null is ``null``.

        Raises ValueError for values that Connect refuses under their schema.
        """
        if node is None:
            return lambda _: None
        head, tail = self.envelope(node)
        template = _Template(positions, numeric=self.numeric, embeds=self.embeds and not self.schemas_enable)
        template.literal(head)
        template.node(node)
        template.literal(tail)
        return template.render()

    def envelope(self, node: Node) -> tuple[bytes, bytes]:
        """Return the texts before and after a value: its schema, if that is written."""
        return (b'{"schema":' + schema_json(node.schema) + b',"payload":', b"}") if self.schemas_enable else (b"", b"")


class _Template:
    """A text with gaps, collected in a walk over a node, and then the function of a row that fills them."""

    def __init__(self, positions: Mapping[str, int], *, numeric: bool, embeds: bool) -> None:
        self._positions = positions
        self._embeds = embeds
        self._numeric = numeric
        self._text = b""
        self._gaps: list[tuple[int, _Write]] = []
        """The position of each gap's column, and its writer."""

    def literal(self, text: bytes) -> None:
        """Add text that is the same in every row."""
        self._text += text.replace(b"%", b"%%")

    def node(self, node: Node) -> None:
        """Add a value of the row, or a struct of values."""
        if isinstance(node, Constant):
            self.literal(_constant_in_json(node, numeric=self._numeric))
        elif isinstance(node, Cell):
            self._text += b"%b"
            write = _writer(node, numeric=self._numeric, embeds=self._embeds)
            self._gaps.append((self._positions[node.column], write))
        else:
            for index, (name, member) in enumerate(node.items()):
                self.literal((b"," if index else b"{") + json_string(name) + b":")
                self.node(member)
            self.literal(b"}" if node.members else b"{}")

    def render(self) -> Callable[[Row], bytes]:
        """Return the function of a row."""
        template = self._text
        positions, writers = [position for position, _ in self._gaps], [write for _, write in self._gaps]
        if not writers:
            constant = template % ()
            return lambda _: constant
        if len(writers) == 1:
            writer, position = writers[0], positions[0]
            return lambda row: template % writer(row[position])
        if positions == [*range(len(positions))]:
            # map() stops at the last writer, so the row may be longer
            return lambda row: template % tuple(map(_call, writers, row))
        pick = itemgetter(*positions)
        return lambda row: template % tuple(map(_call, writers, pick(row)))


def _text_in_json(raw: bytes | None) -> bytes:
    if raw is None:
        return b"null"
    if _NEEDS_CARE(raw) is None:
        return b'"%b"' % raw
    return json_string(raw.decode())


def _verbatim(raw: bytes | None) -> bytes:
    return raw or b"null"


def _float_writer(text_of: Callable[[bytes], bytes]) -> _Write:
    def write(raw: bytes | None) -> bytes:
        return b"null" if raw is None else finite(text_of(raw))

    return write


def _timestamp_in_json(raw: bytes | None) -> bytes:
    return b"null" if raw is None else b"%d" % (decode_timestamp(raw) // 1000)


def _numeric_writer(scale: int, convert: Callable[[bytes], bytes], *, numeric: bool) -> _Write:
    """Return the writer of a NUMERIC column by Postgres' digits; ``convert`` is for other digits than Java's."""
    read = unscaled(scale)

    def literal(raw: bytes | None) -> bytes:
        if raw is None:
            return b"null"
        return raw if is_plain(raw, scale) else convert(raw)

    def base64(raw: bytes | None) -> bytes:
        if raw is None:
            return b"null"
        number = read(raw)
        return convert(raw) if number is None else base64_of(integer_bytes(number))

    return literal if numeric else base64


_BOOLEANS: Mapping[bytes | None, bytes] = {b"t": b"true", b"f": b"false", None: b"null"}

_DIRECT: Mapping[Kind, _Write] = {
    Kind.BOOLEAN: _BOOLEANS.__getitem__,
    Kind.INTEGER: _verbatim,
    Kind.FLOAT32: _float_writer(float_text),
    Kind.FLOAT64: _float_writer(double_text),
    Kind.TEXT: _text_in_json,
    Kind.JSON: _text_in_json,
    Kind.BYTEA: lambda raw: b"null" if raw is None else base64_of(decode_bytea(raw)),
    Kind.TIME: lambda raw: b"null" if raw is None else b"%d" % decode_time(raw),
    Kind.TIMESTAMP: _timestamp_in_json,
    Kind.TIMESTAMPTZ: _timestamp_in_json,
}


def _writer(cell: Cell, *, numeric: bool, embeds: bool) -> _Write:
    """Return the function from raw bytes of the cell's column to JSON."""
    if embeds and cell.kind is Kind.JSON and not cell.steps:
        return _verbatim
    write = value_writer(cell.schema, cell.java, numeric=numeric)
    if not cell.steps and cell.kind in _DIRECT:
        return _DIRECT[cell.kind]
    convert = writer_of(cell, write, b"null")
    if not cell.steps and cell.kind is Kind.NUMERIC and cell.schema.name == DECIMAL:
        return _numeric_writer(scale_of(cell.schema), convert, numeric=numeric)
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


def _constant_in_json(node: Constant, *, numeric: bool) -> bytes:
    if node.value is not None:
        return value_writer(node.schema, node.java, numeric=numeric)(node.value)
    if not node.schema.optional:
        raise ValueError("can't write null under a schema that is not optional; Connect refuses it too")
    return b"null"
