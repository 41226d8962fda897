"""From a record's key back to the columns that it is made of, so that an index may find its row. Pure.

A key is decoded as its converter writes it; the columns are right if they give the same bytes again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from compactory.errors import CompactoryError
from compactory_connectors.connect.converters import Converter, Render
from compactory_connectors.connect.converters.decoders import decoder_of
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.record.record import WHOLES, Cell, Java, KeyParts, Kind, Node, StructNode

from ..postgres.catalog import Column, Table

__all__ = ["is_exact", "key_reader", "key_type", "sample"]

_EXACT = {Kind.BOOLEAN, Kind.INTEGER, Kind.TEXT, Kind.DATE}
_UNEQUALLED = {"json", "xml", "point", "line", "lseg", "box", "path", "polygon", "circle"}
"""Types whose ``=`` does not exist, or asks for something else."""

_INTEGERS = {"int2", "int4", "int8"}
_TEXTS = {"text", "varchar", "bpchar"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def key_type(column: Column) -> str:
    """Return the type to which a column's text is cast to compare it; one that takes any text of :func:`key_reader`."""
    if column.type in _INTEGERS:
        return "bigint"
    return column.type if column.type in {*_TEXTS, "uuid", "numeric"} else column.declared


def is_exact(key: Node | None, converter: Converter, table: Table) -> bool:
    """Return True if two rows have one record key only if Postgres takes the key's columns for equal."""
    if isinstance(converter, StringConverter) and not isinstance(key, Cell):
        return False
    if isinstance(key, StructNode):
        return all(isinstance(node, Cell) and _exact(node, table) for node in key.members)
    return isinstance(key, Cell) and _exact(key, table)


def sample(column: Column | None, number: int) -> bytes | None:
    """Return a value such as Postgres writes it, unlike those of other columns where there are so many."""
    kind = column.type if column is not None else ""
    if column is None or kind in _TEXTS:
        return column.name.encode() if column is not None else None
    return _SAMPLES[kind].replace(b"#", b"%02d" % (number % 60)) if kind in _SAMPLES else None


_SAMPLES = dict.fromkeys([*_INTEGERS, "oid", "numeric"], b"#") | {
    "bool": b"t",
    "bytea": b"\\x#",
    "date": b"20#-02-03",
    "float4": b"#.5",
    "float8": b"#.5",
    "time": b"04:05:#.789",
    "timestamp": b"20#-02-03 04:05:06.789012",
    "timestamptz": b"20#-02-03 04:05:06.789012+00",
    "uuid": b"00000000-0000-0000-0000-0000000000#",
}


def _exact(cell: Cell, table: Table) -> bool:
    column = table.column(cell.column)
    if column is None or column.type in _UNEQUALLED or not all(step.lossless for step in cell.steps):
        return False
    return cell.kind in _EXACT or (column.type == "numeric" and (cell.java in WHOLES or cell.java is Java.DECIMAL))


def key_reader(
    key: Node | None,
    converter: Converter,
    table: Table,
    columns: Sequence[str],
    key_columns: Sequence[str],
    render: Render,
) -> Callable[[bytes], KeyParts | None]:
    """Return the function from a record's key to the columns of the rows that have it; None where that is not known."""
    single, members = isinstance(key, Cell), list(_members(key))
    types = {column.name: column.type for column in table.columns}
    decode = decoder_of(converter)

    def read(key_bytes: bytes) -> KeyParts | None:
        with suppress(ValueError, TypeError, OverflowError, struct.error, CompactoryError):
            ((_, value),) = decode([key_bytes])
            if single != isinstance(value, dict):
                values = {node.column: value if single else value.get(name) for name, node in members}
                texts = {name: _text(part, types[name]) for name, part in values.items()}
                row = [texts.get(name) for name in columns]
                if None not in texts.values() and render(row) == key_bytes:
                    return tuple(texts[name] for name in key_columns)
        return None

    return read


def _members(key: Node | None) -> Iterator[tuple[str, Cell]]:
    named = key.items() if isinstance(key, StructNode) else [("", key)]
    return ((name, node) for name, node in named if isinstance(node, Cell))


def _text(value: Any, kind: str) -> bytes | None:
    """Return a value as Postgres writes it in a column of this type; None where it is none, or that is not known."""
    text = str(value)
    if "\0" in text or isinstance(value, dict | list | bool | float | None):
        return None
    if kind == "uuid":
        with suppress(ValueError):
            return text.encode() if str(UUID(text)) == text else None
        return None
    if kind in _INTEGERS or kind == "numeric":
        return text.encode() if _NUMBER.fullmatch(text) else None
    with suppress(UnicodeEncodeError):
        return text.encode() if kind in _TEXTS else None
    return None
