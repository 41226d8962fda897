"""A record as the compiler of the transform chain sees it: not values but where values come from.

A chain is applied once per table to such a record, not once per row. The result is a tree of ``Cell`` (a column and
the conversions on its way), ``Constant`` and ``StructNode``; a converter turns it into one function of a row, so that
renaming fields costs a row nothing.
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
    "converted",
]

KeyParts: TypeAlias = tuple[bytes | None, ...]
"""The columns of a record's key, as Postgres writes them."""


class Kind(Enum):
    """How Postgres writes a column in text format; decides which direct conversions of raw bytes exist."""

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
    CONVERTED = auto()
    """No short cuts: a value that hangs on the connector's options, a part of one, or one that is no column's text."""


class Java(Enum):
    """The Java class of a value, and in brackets what stands for it here."""

    BOOLEAN = "java.lang.Boolean"  # bool
    BYTE = "java.lang.Byte"  # int
    SHORT = "java.lang.Short"  # int
    INTEGER = "java.lang.Integer"  # int
    LONG = "java.lang.Long"  # int
    FLOAT = "java.lang.Float"  # float that a float32 holds exactly
    DOUBLE = "java.lang.Double"  # float
    STRING = "java.lang.String"  # str
    BYTES = "byte[]"  # bytes
    LIST = "java.util.ArrayList"  # list of what its values are
    MAP = "java.util.HashMap"  # dict, keys and values likewise
    STRUCT = "org.apache.kafka.connect.data.Struct"  # dict of the fields' values, inside of a list only
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
    """A row that can't become a record: the ``reason`` names the column, never a value; ``row`` is its id, or empty."""

    def __init__(self, reason: str, row: str | None = None) -> None:
        super().__init__(reason if row is None else f"row {row}: {reason}" if row else f"a row: {reason}")
        self.reason = reason

    def told(self, *, name_rows: bool) -> str:
        """The text for logs, with the row's id only where that is asked for."""
        return str(self) if name_rows else self.reason


class LogUnreadable(Exception):
    """The key of a logged deletion can't be made of the log any more; says why, never a value."""


@dataclass(frozen=True, slots=True)
class Step:
    """One conversion of a value that is not null; null stays null.

    ``plain`` has short cuts by the column's kind: raw bytes → the UTF-8 text of the converted value, or None where the
    short cut can't tell and ``apply`` must. The text has no character that JSON would escape.
    """

    apply: Callable[[Any], Any]
    plain: Mapping[Kind, Callable[[bytes], bytes | None]] = field(default_factory=dict)
    lossless: bool = False
    """Two different values never become one."""
    to_char: str | None = None
    """The pattern with which ``to_char`` writes the same of a time in the years 1583 to 9999, where there is one."""


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
    """Known not to be null here, although its schema is optional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A value that no column decides."""

    schema: Schema
    java: Java
    value: Any


@dataclass(frozen=True, slots=True)
class StructNode:
    """A struct; ``members`` are in the order of ``schema.fields``.

    It is null in the rows in which ``when`` is; without ``when`` it never is.
    """

    schema: Schema
    members: tuple[Node, ...]
    when: Cell | None = None

    def items(self) -> Iterator[tuple[str, Node]]:
        """The members with their names."""
        return zip((item.name for item in self.schema.fields), self.members, strict=True)

    def member(self, name: str) -> Node | None:
        """The member called ``name``, or None."""
        return next((node for field_name, node in self.items() if field_name == name), None)


Node: TypeAlias = Cell | Constant | StructNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of a row. ``key`` None: it has no key. ``warnings``: the transforms' doubts."""

    topic: str
    key: Node | None
    value: Node
    function: Any = None
    """The ``FunctionTransform`` behind the others, where there is one."""
    warnings: tuple[str, ...] = ()


def converted(node: Cell | Constant, schema: Schema, java: Java, step: Step) -> Cell | Constant:
    """``node`` behind one more conversion; null stays null. Raises what the step raises of a constant."""
    if isinstance(node, Constant):
        return Constant(schema=schema, java=java, value=None if node.value is None else step.apply(node.value))
    return replace(node, schema=schema, java=java, steps=(*node.steps, step))


def cells(node: Node | None) -> Iterator[Cell]:
    """Every cell under ``node``, in order."""
    if isinstance(node, Cell):
        yield node
    elif isinstance(node, StructNode):
        yield from cells(node.when)
        for member in node.members:
            yield from cells(member)
