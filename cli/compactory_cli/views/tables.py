"""The printer of lists: the same items as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from .terminal import decoded, legible, marked, number, print_json, print_table, say, wants_json

__all__ = [
    "Column",
    "Table",
    "bold",
    "document",
    "failed_columns",
    "if_any",
    "print_lines",
    "print_tables",
    "red_if_any",
    "time_text",
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``show``   the cell for a value of the field; None is shown as a dash without it
    ``field``  the item's attribute or key, or a function that returns the value; default: the title
    ``right``  the column has numbers
    """

    title: str
    show: Callable[[Any], object] | None = None
    field: str | Callable[[Any], Any] | None = None
    right: bool = False

    def cell(self, item: Any) -> object:
        """Return the cell of an item."""
        field = self.field if self.field is not None else self.title.replace(" ", "_")
        if callable(field):
            value = field(item)
        else:
            value = item.get(field) if isinstance(item, Mapping) else getattr(item, field)
        return value if value is None or self.show is None else self.show(value)


def document(value: Any) -> Any:
    """Return a value as JSON: dataclasses as objects, times in ISO 8601, bytes as text."""
    if is_dataclass(value):
        return {field.name: document(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {document(name): document(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [document(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    return decoded(value) if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class Table:
    """Items to print.

    ``name``      their name in the JSON document
    ``none``      the text for people if there are no items; None: nothing is printed then
    ``document``  returns an item as JSON
    """

    name: str
    items: Sequence[Any]
    columns: Sequence[Column]
    none: str | None = None
    document: Callable[[Any], Any] = document


def print_tables(*tables: Table, **values: object) -> None:
    """Print one document for programs, with ``values`` beside the tables, or each table for people."""
    if wants_json():
        print_json({table.name: [table.document(item) for item in table.items] for table in tables} | values)
        return
    for table in tables:
        if table.items or table.none is not None:
            titles = [column.title for column in table.columns]
            right = [column.title for column in table.columns if column.right]
            rows = ([column.cell(item) for column in table.columns] for item in table.items)
            print_table(titles, rows, right=right, none=table.none)


def print_lines(
    name: str,
    items: Sequence[Any],
    line: Callable[[Any], str],
    none: str = "",
    document: Callable[[Any], Any] = document,
    **values: object,
) -> None:
    """Print one document for programs, or a line of markup for each item for people, and ``none`` without items."""
    if wants_json():
        print_json({name: [document(item) for item in items]} | values)
        return
    for item in items:
        say(line(item))
    if not items and none:
        say(none)


def bold(value: object) -> object:
    """Return a cell in bold."""
    return marked("bold", value)


def red_if_any(count: int) -> object:
    """Return a number, red unless it is 0."""
    return marked("red", number(count)) if count else "0"


def if_any(value: Any) -> Any:
    """Return the value; None, which is a dash, if it is empty."""
    return value or None


def time_text(moment: datetime) -> str:
    """Return ``2024-01-31 10:00:00``."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def failed_columns(*place: Column) -> tuple[Column, ...]:
    """Return the columns of records or messages that failed, which are at this place."""
    return (
        *place,
        Column("key", legible),
        Column("bytes", number, right=True),
        Column("failed", time_text, "failed_at"),
        Column("reason", None, lambda item: item.reason or "waits for an earlier one of its key"),
    )
