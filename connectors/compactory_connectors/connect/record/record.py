"""The record of a table as transforms see it: nodes that say from which column a value comes, and how it is converted.

A chain of transforms is applied to such a record once per table, not once per row. The result is a tree of ``Cell``
(a column and its conversions), ``Constant`` and ``StructNode``. A converter compiles the tree into a function of a row,
so that renaming a field costs nothing per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, TypeAlias

from .schema import Schema

__all__ = [
    "TIMES",
    "WHOLES",
    "Cell",
    "Constant",
    "Java",
    "KeyParts",
    "Kind",
    "Node",
    "Record",
    "RowError",
    "RowFailed",
    "Step",
    "StructNode",
    "cells",
    "with_step",
]

KeyParts: TypeAlias = tuple[bytes | None, ...]
"""The columns of a record's key, as Postgres writes them."""


class Kind(Enum):
    """The text format in which Postgres writes a column; it decides which conversions of raw bytes have a short cut."""

    BOOLEAN = auto()
    INTEGER = auto()
    FLOAT32 = auto()
    FLOAT64 = auto()
    NUMERIC = auto()
    TEXT = auto()
    BYTEA = auto()
    DATE = auto()
    TIME = auto()
    TIMESTAMP = auto()
    TIMESTAMPTZ = auto()
    JSON = auto()
    """A text that is JSON: an array, a composite or hstore that Postgres wrote as JSON."""
    CONVERTED = auto()
    """No short cuts: the value depends on the connector's options, or is a part of a column's text."""


class Java(Enum):
    """The Java class of a value; the comments name the Python class of the value here."""

    BOOLEAN = "java.lang.Boolean"  # bool
    BYTE = "java.lang.Byte"  # int
    SHORT = "java.lang.Short"  # int
    INTEGER = "java.lang.Integer"  # int
    LONG = "java.lang.Long"  # int
    FLOAT = "java.lang.Float"  # float that a float32 holds exactly
    DOUBLE = "java.lang.Double"  # float
    STRING = "java.lang.String"  # str
    BYTES = "byte[]"  # bytes
    LIST = "java.util.ArrayList"  # list, in a sink only
    MAP = "java.util.HashMap"  # dict, in a sink only
    STRUCT = "org.apache.kafka.connect.data.Struct"  # dict, in a sink only
    DECIMAL = "java.math.BigDecimal"  # decimal.Decimal, its scale included
    SQL_DATE = "java.sql.Date"  # int, milliseconds since 1970-01-01T00:00Z
    SQL_TIME = "java.sql.Time"  # int, milliseconds since midnight
    SQL_TIMESTAMP = "java.sql.Timestamp"  # int, microseconds since 1970-01-01T00:00Z
    DATE = "java.util.Date"  # int, milliseconds since 1970-01-01T00:00Z


WHOLES = (Java.BYTE, Java.SHORT, Java.INTEGER, Java.LONG)
"""The classes of integers, by width."""

TIMES = frozenset({Java.SQL_DATE, Java.SQL_TIME, Java.SQL_TIMESTAMP, Java.DATE})
"""The classes of dates and times."""


class RowError(ValueError):
    """A value that can't be converted: the real connector's task would fail on it. Never shows the value."""


class RowFailed(RowError):
    """A row that can't become a record. ``reason`` names the column, never a value; ``row`` is the id, or empty."""

    def __init__(self, reason: str, row: str | None = None) -> None:
        super().__init__(reason if row is None else f"row {row}: {reason}" if row else f"a row: {reason}")
        self.reason = reason

    def log_text(self, *, name_rows: bool) -> str:
        """Return the text for logs, with the row's id if ``name_rows``."""
        return str(self) if name_rows else self.reason


class LogUnreadable(Exception):
    """The key of a logged deletion can no longer be made from the log. The text says why, without values."""


@dataclass(frozen=True, slots=True)
class Step:
    """A conversion of a value that is not null; null stays null.

    ``plain`` has short cuts by the column's kind, from raw bytes to the UTF-8 text of the converted value. A short cut
    returns None for a value that needs ``apply``. Its text has no character that JSON would escape.
    """

    apply: Callable[[Any], Any]
    plain: Mapping[Kind, Callable[[bytes], bytes | None]] = field(default_factory=dict)
    lossless: bool = False
    """True if two different values never become equal."""
    to_char: str | None = None
    """The pattern with which Postgres' ``to_char`` writes the same text for the years 1583 to 9999, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The value of one column of the row, after ``decode`` and then ``steps``."""

    column: str
    kind: Kind
    schema: Schema
    java: Java
    decode: Callable[[bytes], Any]
    steps: tuple[Step, ...] = ()
    present: bool = False
    """True if the value is not null in these rows, although its schema is optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A value that is the same in every row."""

    schema: Schema
    java: Java
    value: Any


@dataclass(frozen=True, slots=True)
class StructNode:
    """A struct, which is never null; ``members`` are in the order of ``schema.fields``."""

    schema: Schema
    members: tuple[Node, ...]

    def items(self) -> Iterator[tuple[str, Node]]:
        """Return the members with their names."""
        return zip((item.name for item in self.schema.fields), self.members, strict=True)

    def member(self, name: str) -> Node | None:
        """Return the member called ``name``, or None."""
        return next((node for field_name, node in self.items() if field_name == name), None)


Node: TypeAlias = Cell | Constant | StructNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of a row. ``key`` is None where records have no key; ``warnings`` are those of transforms."""

    topic: str
    key: Node | None
    value: Node
    function: Any = None
    """The ``FunctionTransform`` that follows the other transforms, if there is one."""
    warnings: tuple[str, ...] = ()


def with_step(node: Cell | Constant, schema: Schema, java: Java, step: Step) -> Cell | Constant:
    """Return ``node`` with a further conversion; null stays null. Raises what the step raises for a constant."""
    if isinstance(node, Constant):
        return Constant(schema=schema, java=java, value=None if node.value is None else step.apply(node.value))
    return replace(node, schema=schema, java=java, steps=(*node.steps, step))


def cells(node: Node | None) -> Iterator[Cell]:
    """Yield every cell under ``node``, in order."""
    if isinstance(node, Cell):
        yield node
    elif isinstance(node, StructNode):
        for member in node.members:
            yield from cells(member)
