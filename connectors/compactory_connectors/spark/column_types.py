"""Postgres' types and what Spark holds their values in; pure, so that rules are checked without Spark.

A type that Spark has the like of is held in it. The rest is a string that has Postgres' own text form, which a target
hands on as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

__all__ = ["INTERNAL", "ColumnType", "nearest_type", "parse_type"]

INTERNAL: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "varchar": "character varying",
    "bpchar": "character",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "varbit": "bit varying",
}
"""The names in ``pg_type`` of types that SQL spells otherwise."""
_ALIASES: Final = {
    **INTERNAL,
    "int": "integer",
    "decimal": "numeric",
    "float": "double precision",
    "double": "double precision",
    "string": "text",
    "char": "character",
}
_SPARK: Final = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
    "bytea": "binary",
}
_STRINGS: Final = ("text", "character varying", "character", "numeric", "uuid", "json", "jsonb")
_WRITTEN: Final = re.compile(r"(?P<name>[^(]*?)\s*(?:\((?P<modifiers>[-\d,\s]*)\))?(?P<suffix>(?:\s+\w+)*)")
_DIGITS: Final = 38
"""The most digits of a Spark decimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """A type of Postgres. ``name`` is as ``format_type`` spells it, without modifiers."""

    name: str
    modifiers: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.modifiers:
            return self.name
        first, _, suffix = self.name.partition(" with")
        numbers = ",".join(map(str, self.modifiers))
        return f"{first}({numbers}) with{suffix}" if suffix else f"{first}({numbers})"

    @property
    def spark(self) -> str:
        """Spark's type for it, as DDL has it: ``decimal(10,2)``; ``string`` for all types that Spark lacks."""
        if self.name == "numeric" and self.modifiers:
            precision, scale = (*self.modifiers, 0)[:2]
            return f"decimal({precision},{scale})" if 0 <= scale <= precision <= _DIGITS else "string"
        return _SPARK.get(self.name, "string")

    @property
    def length(self) -> int | None:
        """The most characters of a text; ``character(n)`` is filled up to it with blanks."""
        if self.name == "character":
            return self.modifiers[0] if self.modifiers else 1
        return self.modifiers[0] if self.name == "character varying" and self.modifiers else None

    @property
    def fraction(self) -> int | None:
        """The digits of a second that a timestamp keeps; None for other types."""
        return (*self.modifiers, 6)[0] if self.name.startswith("timestamp ") else None


def parse_type(written: str) -> ColumnType:
    """A type as people or ``format_type`` write it: ``varchar(20)``, ``timestamp(3) with time zone``, ``text[]``.

    Names that are not known pass, for enums and extensions.
    """
    text = " ".join(written.split())
    match = _WRITTEN.fullmatch(text.lower())
    if match is None or text.endswith("]") or '"' in text:
        return ColumnType(name=text)
    modifiers = tuple(int(part) for part in (match["modifiers"] or "").split(",") if part.strip())
    name = f"{match['name']}{match['suffix']}"
    name = _ALIASES.get(name, name)
    is_known = name in _SPARK or name in _ALIASES.values() or name in _STRINGS
    return ColumnType(name=name, modifiers=modifiers) if is_known else ColumnType(name=text)


def nearest_type(written: str) -> str | None:
    """Return the built-in type nearest to a misspelt name; None for the name of a type, or one near to none."""
    kind = parse_type(written)
    names = [*_SPARK, *_STRINGS, *_ALIASES, *_ALIASES.values()]
    if kind.name in names:
        return None
    close = get_close_matches(kind.name.partition("(")[0].lower(), names, n=1, cutoff=0.8)
    return close[0] if close else None
