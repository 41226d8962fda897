"""The sections of a rules file: what a load demands of its rows. Pure.

Each value is text as written in the file until its field reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..column_types import ColumnType, nearest_type, parse_type

__all__ = ["PLACE", "Check", "ColumnRule", "FileFormat", "Order", "ReadOptions", "Reference", "Rules"]

PLACE: Final = "\0place"
"""Key of sections for the file and the line of each, for errors; no key of YAML has this character."""
_SOURCES = {"from": "source", "expression": "expression", "value": "value"}


class FileFormat(StrEnum):
    """A format of files."""

    CSV = "csv"
    JSON = "json"
    """An object a line."""
    PARQUET = "parquet"


def _sign(text: Any) -> Any:
    text = "\t" if text == "\\t" else text
    if isinstance(text, str) and len(text) != 1:
        raise ValueError(f"must be one character, and is {text!r}")
    return text


def _encoding(text: Any) -> Any:
    try:
        plain = not isinstance(text, str) or "\n".encode(text) == b"\n"
    except LookupError:
        raise ValueError(f"{text!r} is no encoding; known are UTF-8, ISO-8859-1, windows-1252 …") from None
    if not plain:
        raise ValueError(f"files in {text} are not read: convert them, iconv -f {text} -t UTF-8")
    return text


def _zone(text: Any) -> Any:
    try:
        ZoneInfo(text if isinstance(text, str) else "UTC")
    except (LookupError, ValueError, OSError):
        raise ValueError(f"{text!r} is no time zone; write one such as Europe/Berlin") from None
    return text


def _type(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    if close := nearest_type(text):
        raise ValueError(f"{text!r} is no type; did you mean {close}?")
    return parse_type(text)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Texts: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Sign: TypeAlias = Annotated[str, BeforeValidator(_sign)]
Zone: TypeAlias = Annotated[str, BeforeValidator(_zone)]
Decimal: TypeAlias = Literal[".", ","]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, section: Any) -> Any:
        return {} if section is None else section


class ReadOptions(_Section):
    """Options of reading files; None: as the files show."""

    format: FileFormat | None = None
    delimiter: Sign = ","
    quote: Sign = '"'
    escape: Sign | None = None
    """The character before a quote within quotes; None: a quote is doubled, as RFC 4180 says."""
    encoding: Annotated[str, BeforeValidator(_encoding)] = "UTF-8"
    header: Texts = ()
    """Names of the columns of CSV files that have no header line."""
    multiline: bool = False
    """True if quoted text may have line ends; records have no line numbers then."""
    nulls: Texts = ()
    """Texts that stand for null beside an empty field without quotes."""
    time_zone: Zone = "UTC"
    """Where times without an offset are meant that go into a column with a time zone."""
    decimal: Decimal = "."
    """The decimal sign; with a comma, dots and blanks between digits are thousands."""


class Reference(_Section):
    """A value has to be in another directory: in ``column`` of its active entries; None: their key."""

    directory: str
    column: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, section: Any) -> Any:
        section = {"directory": section} if isinstance(section, str) else section
        if isinstance(section, dict) and not section.get("directory"):
            raise ValueError("names no directory: {directory: acquirers, column: id}")
        return section


class ColumnRule(_Section):
    """The source of a column of the target, and the demands on its values."""

    place: str = Field(default="", alias=PLACE)
    source: str | None = Field(default=None, alias="from")
    """The source's column; None: the one of the same name."""
    expression: str | None = None
    """Spark SQL over the source's columns, in place of one of them."""
    value: str | None = None
    """The same for each row."""
    type: Annotated[ColumnType | None, BeforeValidator(_type)] = None
    required: bool = False
    optional: bool = False
    """The source need not have the column."""
    trim: bool = False
    nulls: Texts = ()
    default: str | None = None
    """In place of null."""
    format: str | None = None
    """How dates and times are written, as Spark's datetime patterns say."""
    decimal: Decimal | None = None
    time_zone: Zone | None = None
    pattern: str | None = None
    """A regular expression of Java that the whole text has to match."""
    minimum: str | None = Field(default=None, alias="min")
    maximum: str | None = Field(default=None, alias="max")
    allowed: Texts | None = None
    reference: Reference | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        named = [key for key, name in _SOURCES.items() if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"has {' and '.join(named)}, and one of them fills the column; keep one")
        return self


class Check(_Section):
    """A condition in Spark SQL over the target's columns; like a CHECK of SQL, null satisfies it."""

    place: str = Field(default="", alias=PLACE)
    name: str
    expression: str

    @model_validator(mode="before")
    @classmethod
    def _named(cls, section: Any) -> Any:
        if not isinstance(section, dict):
            return section
        if not section.get("expression"):
            raise ValueError("has no expression: {name: dates in order, expression: valid_from < valid_to}")
        return {"name": section["expression"], **section}


class Order(_Section):
    """By which column the row of a key is chosen that is loaded; of the target, or else of the source."""

    column: str
    newest: bool
    """The greatest value wins; else the least."""

    @model_validator(mode="before")
    @classmethod
    def _words(cls, text: Any) -> Any:
        words = text.rsplit(maxsplit=1) if isinstance(text, str) else []
        if len(words) != 2 or words[1].lower() not in {"asc", "desc"}:
            raise ValueError(f'{text!r} is no order; write "COLUMN desc" (greatest wins) or "COLUMN asc"')
        return {"column": words[0], "newest": words[1].lower() == "desc"}


class Rules(_Section):
    """All that a rules file says; the one without a file demands what the target demands."""

    read: ReadOptions = ReadOptions()
    key: Texts = ()
    """Has to be the target's, where it is given."""
    columns: Annotated[
        Mapping[str, ColumnRule], BeforeValidator(lambda section: {} if section is None else section)
    ] = {}
    ignore: Texts = ()
    """Columns of the source that are not loaded."""
    checks: Annotated[tuple[Check, ...], BeforeValidator(_listed)] = ()
    duplicates: Annotated[tuple[Order, ...], BeforeValidator(_listed)] = ()
    """By what one of several rows of a key is chosen; empty: rows that differ are rejected."""
