"""What a load demands of its rows: values that a rules file is read into. Pure, and of no use without a reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..column_types import ColumnType

__all__ = ["Check", "ColumnRule", "FileFormat", "Order", "ReadOptions", "Reference", "Rules"]


class FileFormat(StrEnum):
    """How a source is written."""

    CSV = "csv"
    JSON = "json"
    """An object a line."""
    PARQUET = "parquet"
    ORC = "orc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How files are read; what is None follows from the files themselves."""

    format: FileFormat | None = None
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None
    """What takes a quote's meaning within quotes; None: a quote is doubled, as RFC 4180 says."""
    encoding: str = "UTF-8"
    header: tuple[str, ...] = ()
    """Names of the columns of CSV files that have no header line."""
    multiline: bool | None = None
    """Whether quoted text may hold line ends; None: large files are looked through first."""
    nulls: tuple[str, ...] = ()
    """Texts that stand for null beside an empty field without quotes."""
    time_zone: str = "UTC"
    """Where times without an offset are meant that go into a column with a time zone."""
    decimal: str = "."
    """The decimal sign; with a comma, dots and blanks between digits are thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A value has to be in another directory: in ``column`` of its active entries; None: their key."""

    directory: str
    column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """What fills a column of the target, and what it demands. ``place`` says where it was written, for errors."""

    name: str
    place: str = ""
    source: str | None = None
    """The source's column; None: the one of the same name."""
    expression: str | None = None
    """Spark SQL over the source's columns, in place of one of them."""
    value: str | None = None
    """The same for each row."""
    type: ColumnType | None = None
    required: bool = False
    optional: bool = False
    """The source need not have the column."""
    trim: bool = False
    nulls: tuple[str, ...] = ()
    default: str | None = None
    """In place of null."""
    format: str | None = None
    """How dates and times are written, as Spark's datetime patterns say."""
    decimal: str | None = None
    time_zone: str | None = None
    pattern: str | None = None
    """A regular expression of Java that the whole text has to match."""
    least: str | None = None
    most: str | None = None
    allowed: tuple[str, ...] | None = None
    reference: Reference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition in Spark SQL over the target's columns; like a CHECK of SQL, null satisfies it."""

    name: str
    expression: str
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """By which column the row of a key is chosen that is loaded; of the target, or else of the source."""

    column: str
    newest: bool = True
    """The greatest value wins; else the least."""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All that a rules file says; the one without a file demands what the target demands."""

    path: str = "no rules"
    read: ReadOptions = field(default_factory=ReadOptions)
    key: tuple[str, ...] = ()
    """Has to be the target's, where it is given."""
    columns: Mapping[str, ColumnRule] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    """Columns of the source that are not loaded."""
    checks: tuple[Check, ...] = ()
    duplicates: tuple[Order, ...] = ()
    """By what one of several rows of a key is chosen; empty: rows that differ are rejected."""
