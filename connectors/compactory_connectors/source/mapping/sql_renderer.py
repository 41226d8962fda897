"""Keys and values that Postgres writes itself, where its text is known to be the converters', byte for byte. Pure.

A table's record becomes two SQL expressions over its rows ``t``, so that a load moves finished bytes. Whatever is not
proven equal (numbers with a fraction, Avro, a null that decides what a record is) has no expression, and the whole
table goes the ordinary way; single rows do that are out of a column's proven range. The session's text formats are
those that the converters read, and the database's encoding is UTF-8.

Sources: Jackson 2.16 ``UTF8JsonGenerator``, PostgreSQL ``escape_json`` and ``to_char``; tests compare both ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from psycopg import sql

from compactory_connectors.connect.converters import Converter
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.json_value import json_string
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.record.record import Cell, Constant, Java, Kind, Node, Record
from compactory_connectors.connect.record.schema import DATE, TIME, TIMESTAMP, Type

from ..postgres.catalog import Column

__all__ = ["Formatted", "formatted", "respelt"]

_Part: TypeAlias = "bytes | sql.Composable"

_ITSELF = {"text", "varchar", "name", "uuid"}
"""Types of texts whose cast to text is what their output is. Not char(n): a cast takes its blanks away."""
_ANY = {*_ITSELF, "bpchar", "json", "jsonb"}

_DAYS = sql.SQL("({} - '1970-01-01'::date)::text")
_CLOCK = sql.SQL(
    "(extract(hour FROM {0})::int8 * 3600000 + extract(minute FROM {0})::int8 * 60000"
    " + extract(microseconds FROM {0})::int8 / 1000)::text"
)
_MILLIS = sql.SQL(
    "(extract(epoch FROM pg_catalog.date_trunc('second', {0}))::int8 * 1000"
    " + extract(microseconds FROM {0})::int8 % 1000000 / 1000)::text"
)
_NUMBERS: Mapping[Kind, tuple[sql.SQL, str]] = {
    Kind.DATE: (_DAYS, DATE),
    Kind.TIME: (_CLOCK, TIME),
    Kind.TIMESTAMP: (_MILLIS, TIMESTAMP),
    Kind.TIMESTAMPTZ: (_MILLIS, TIMESTAMP),
}
"""Numbers that JsonConverter makes of times, and the schema that goes with them. Exact: no float is involved."""

_RANGES: Mapping[Kind, sql.SQL] = {
    Kind.DATE: sql.SQL("{} NOT BETWEEN '1583-01-01' AND '9999-12-31'"),
    Kind.TIMESTAMP: sql.SQL("{} NOT BETWEEN '1583-01-01' AND '9999-12-31 23:59:59.999999'"),
    Kind.TIMESTAMPTZ: sql.SQL("{} NOT BETWEEN '1583-01-01 00:00+00' AND '9999-12-31 23:59:59.999999+00'"),
}
"""Values outside of the years in which Postgres' calendar and text are Java's, infinities included."""

_ESCAPE = re.compile(rb"\\(?:u(00[01][0-9a-f])|.)", re.DOTALL)
_BEYOND = re.compile(r"[\U00010000-\U0010ffff]")
_LEADS = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))
"""First bytes in UTF-8 of what takes two units in UTF-16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    """A record as SQL over ``t``. ``fallback``: rows that must go the ordinary way; None: there are none."""

    key: sql.Composable
    value: sql.Composable
    fallback: sql.Composable | None
    key_escapes: bool
    """The key has texts in JSON: keys from Postgres need :func:`respelt`."""
    value_escapes: bool


def formatted(record: Record, key: Converter, value: Converter, columns: Mapping[str, Column]) -> Formatted | None:
    """Return the expressions for ``record``, or None where one of its parts has none."""
    if record.function is not None:
        return None
    halves = _Half(columns), _Half(columns)
    try:
        halves[0].write(record.key, key)
        if not isinstance(value, JsonConverter):  # of others a value may be no bytes at all, which is a deletion
            return None
        halves[1].write(record.value, value)
    except _Unproven:
        return None
    fallback = list(dict.fromkeys(condition for half in halves for condition in half.fallback))
    return Formatted(
        key=halves[0].expression(),
        value=halves[1].expression(),
        fallback=sql.SQL(" OR ").join(map(_condition, fallback)) if fallback else None,
        key_escapes=halves[0].escapes,
        value_escapes=halves[1].escapes,
    )


def respelt(values: list[bytes | None]) -> list[bytes | None]:
    """Return JSON that Postgres wrote as Jackson writes it: upper-case digits, and surrogate pairs escaped.

    Nearly no page has a character that they write differently, so the whole page is searched first.
    """
    text = b"".join(filter(None, values))
    if b"\\u00" not in text and not any(lead in text for lead in _LEADS):
        return values
    return [None if value is None else _respelt(value) for value in values]


def _respelt(value: bytes) -> bytes:
    value = _ESCAPE.sub(lambda match: b"\\u" + match[1].upper() if match[1] else match[0], value)
    return _BEYOND.sub(lambda match: json_string(match[0])[1:-1].decode(), value.decode()).encode()


class _Unproven(Exception):
    """Something that Postgres is not known to write as the converter does."""


def _condition(case: tuple[str, Kind | None]) -> sql.Composable:
    """Return the condition of rows whose column is out of its kind's range; without a kind, is NULL."""
    column, kind = case
    return (sql.SQL("{} IS NULL") if kind is None else _RANGES[kind]).format(sql.Identifier("t", column))


class _Half:
    """Collects the expression of a key or a value while its node is walked."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._parts: list[_Part] = []
        self.fallback: list[tuple[str, Kind | None]] = []
        self.escapes = False

    def write(self, node: Node | None, converter: Converter) -> None:
        """Add all of a half. Raises _Unproven."""
        if node is None:
            return
        if isinstance(converter, JsonConverter):
            prefix, suffix = converter.envelope(node)
            self._add(prefix)
            self._json(node, converter)
            self._add(suffix)
        elif isinstance(converter, StringConverter) and isinstance(node, Cell):
            self._add(self._text(node))
            if node.schema.optional:  # no key at all, which has its own consequences
                self.fallback.append((node.column, None))
        else:
            raise _Unproven

    def expression(self) -> sql.Composable:
        """Return all of it as one text; NULL where nothing was added."""
        texts = [sql.Literal(part.decode()) if isinstance(part, bytes) else part for part in self._parts]
        if not texts:
            return sql.SQL("NULL")
        whole = sql.SQL(" || ").join(texts)
        return whole if len(texts) > 1 else sql.SQL("({})::text").format(whole)

    def _add(self, part: _Part) -> None:
        if isinstance(part, bytes) and self._parts and isinstance(self._parts[-1], bytes):
            self._parts[-1] += part
        elif part:
            self._parts.append(part)

    def _json(self, node: Node, converter: JsonConverter) -> None:
        if isinstance(node, Cell):
            self._add(sql.SQL("coalesce({}, 'null')").format(self._json_cell(node)))
        elif isinstance(node, Constant):
            self._add(JsonConverter(schemas_enable=False, numeric=converter.numeric).compile(node, {})(()) or b"")
        else:
            for number, (name, member) in enumerate(node.items()):
                self._add((b"," if number else b"{") + json_string(name) + b":")
                self._json(member, converter)
            self._add(b"}" if node.members else b"{}")

    def _json_cell(self, cell: Cell) -> sql.Composable:
        if cell.steps:
            return sql.SQL("""'"' || {} || '"'""").format(self._time_text(cell))
        name = sql.Identifier("t", cell.column)
        if cell.kind in {Kind.BOOLEAN, Kind.INTEGER}:
            return sql.SQL("{}::text").format(name)
        if cell.kind is Kind.TEXT:
            self.escapes = True
            return sql.SQL("pg_catalog.to_json({})::text").format(self._output(cell))
        if cell.kind is Kind.BYTEA:
            return sql.SQL(
                """'"' || pg_catalog.translate(pg_catalog.encode({}, 'base64'), E'\\n', '') || '"'"""
            ).format(name)
        return self._number(cell)

    def _number(self, cell: Cell) -> sql.Composable:
        number, schema = _NUMBERS.get(cell.kind, (None, None))
        if number is None or cell.schema.name != schema:
            raise _Unproven
        text = number.format(sql.Identifier("t", cell.column))
        if cell.kind not in _RANGES:
            return text
        self.fallback.append((cell.column, cell.kind))
        return sql.SQL("CASE WHEN {} THEN NULL ELSE {} END").format(_condition((cell.column, cell.kind)), text)

    def _text(self, cell: Cell) -> sql.Composable:
        """Return the text that StringConverter writes; NULL stays NULL."""
        if cell.steps:
            return self._time_text(cell)
        if cell.kind in {Kind.BOOLEAN, Kind.INTEGER}:
            return sql.SQL("{}::text").format(sql.Identifier("t", cell.column))
        if cell.kind is not Kind.TEXT:
            raise _Unproven
        return self._output(cell)

    def _output(self, cell: Cell) -> sql.Composable:
        """Return a text as the type's own output has it, whatever casts somebody has made."""
        name, column = sql.Identifier("t", cell.column), self._columns[cell.column]
        built_in = column.type_schema == "pg_catalog"
        if cell.schema.type is not Type.STRING or not (column.type_kind == "e" or (built_in and column.type in _ANY)):
            raise _Unproven
        if built_in and column.type in _ITSELF:
            return sql.SQL("{}::text").format(name)
        return sql.SQL("CASE WHEN {0} IS NOT NULL THEN pg_catalog.concat({0}) END").format(name)

    def _time_text(self, cell: Cell) -> sql.Composable:
        pattern = cell.steps[0].to_char if len(cell.steps) == 1 else None
        if pattern is None or cell.java is not Java.STRING or cell.kind not in {Kind.TIMESTAMP, Kind.TIMESTAMPTZ}:
            raise _Unproven
        self.fallback.append((cell.column, cell.kind))
        return sql.SQL("pg_catalog.to_char({}, {})").format(sql.Identifier("t", cell.column), sql.Literal(pattern))
