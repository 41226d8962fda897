"""A rules file: YAML read and checked, every problem at once with its line. Pure.

Texts are taken as they are written: ``NO``, ``2024-01-01`` and ``007`` in a list of allowed values are these letters
and digits, and neither a truth value, a date nor a number, as they would be to YAML 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from zoneinfo import ZoneInfo

from compactory.errors import ConfigError

from ..column_types import ColumnType, nearest_type, parse_type
from .rules import Check, ColumnRule, FileFormat, Order, ReadOptions, Reference, Rules

__all__ = ["parse_rules", "read_rules"]

T = TypeVar("T")
Node: TypeAlias = Any
"""A node of PyYAML, which is not imported before there are rules; its stubs do not know ``id``."""
_ORDERS: Final = {"desc": True, "asc": False}
_TRUE: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SOURCES: Final = ("from", "expression", "value")


def read_rules(path: Path) -> Rules:
    """The rules of a file. Raises ConfigError with every problem found, each with file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    return parse_rules(text, str(path))


def parse_rules(text: str, path: str) -> Rules:
    """The rules of a text; ``path`` is named in errors. Raises ConfigError with every problem found."""
    try:
        import yaml
    except ImportError:
        raise ConfigError("rules need PyYAML: pip install 'compactory[spark]'") from None
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    reader = _Reader(path)
    rules = reader.rules(document) if document is not None else Rules(path=path)
    if reader.problems:
        raise ConfigError(reader.problems)
    return rules


class _Reader:
    """Walks one document and gathers problems instead of stopping at the first."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.problems: list[str] = []

    def rules(self, document: Node) -> Rules:
        found = self._section(
            document,
            "",
            {
                "read": self._read,
                "key": self._texts,
                "columns": self._columns,
                "ignore": self._texts,
                "checks": self._list_of(self._check),
                "duplicates": self._list_of(self._order),
            },
        )
        return Rules(path=self._path, **found)

    def _read(self, node: Node, place: str) -> ReadOptions:
        found = self._section(
            node,
            place,
            {
                "format": self._format,
                "delimiter": self._sign,
                "quote": self._sign,
                "escape": self._sign,
                "encoding": self._encoding,
                "header": self._texts,
                "multiline": self._flag,
                "nulls": self._texts,
                "time_zone": self._zone,
                "decimal": self._decimal,
            },
        )
        return ReadOptions(**found)

    def _columns(self, node: Node, place: str) -> dict[str, ColumnRule]:
        return {name: self._column(name, value, f"{place}.{name}") for name, value in self._items(node, place)}

    def _column(self, name: str, node: Node, place: str) -> ColumnRule:
        found = self._section(
            node,
            place,
            {
                "from": self._text,
                "expression": self._text,
                "value": self._text,
                "type": self._type,
                "required": self._flag,
                "optional": self._flag,
                "trim": self._flag,
                "nulls": self._texts,
                "default": self._text,
                "format": self._text,
                "decimal": self._decimal,
                "time_zone": self._zone,
                "pattern": self._text,
                "min": self._text,
                "max": self._text,
                "allowed": self._texts,
                "reference": self._reference,
            },
        )
        given = [key for key in _SOURCES if found.get(key) is not None]
        if len(given) > 1:
            self._problem(node, place, f"has {' and '.join(given)}, and one of them fills the column; keep one")
        renamed = {"from": "source", "min": "least", "max": "most"}
        values = {renamed.get(key, key): value for key, value in found.items()}
        return ColumnRule(name=name, place=self._where(node, place), **values)

    def _reference(self, node: Node, place: str) -> Reference | None:
        if self._is_text(node):
            return Reference(directory=node.value)
        found = self._section(node, place, {"directory": self._text, "column": self._text})
        if not found.get("directory"):
            self._problem(node, place, "names no directory: {directory: acquirers, column: id}")
            return None
        return Reference(**found)

    def _check(self, node: Node, place: str) -> Check | None:
        found = self._section(node, place, {"name": self._text, "expression": self._text})
        if not found.get("expression"):
            self._problem(node, place, "has no expression: {name: dates in order, expression: valid_from < valid_to}")
            return None
        name = found.get("name") or found["expression"]
        return Check(name=name, expression=found["expression"], place=self._where(node, place))

    def _order(self, node: Node, place: str) -> Order | None:
        words = (self._text(node, place) or "").rsplit(maxsplit=1)
        if len(words) == 2 and words[1].lower() in _ORDERS:
            return Order(column=words[0], newest=_ORDERS[words[1].lower()], place=self._where(node, place))
        if words:
            self._problem(
                node, place, f'{node.value!r} is no order; write "COLUMN desc" (greatest wins) or "COLUMN asc"'
            )
        return None

    # What a value may be.

    def _text(self, node: Node, place: str) -> str | None:
        if self._is_text(node):
            return str(node.value)
        self._problem(node, place, "must be text")
        return None

    def _texts(self, node: Node, place: str) -> tuple[str, ...]:
        return tuple(self._list_of(self._text)(node, place))

    def _flag(self, node: Node, place: str) -> bool | None:
        found = _TRUE.get(str(node.value).lower()) if self._is_text(node) else None
        if found is None:
            self._problem(node, place, "must be true or false")
        return found

    def _sign(self, node: Node, place: str) -> str | None:
        text = "\t" if (text := self._text(node, place)) == "\\t" else text
        if text is not None and len(text) != 1:
            self._problem(node, place, f"must be one character, and is {text!r}")
            return None
        return text

    def _decimal(self, node: Node, place: str) -> str | None:
        return self._choice(node, place, (".", ","))

    def _format(self, node: Node, place: str) -> FileFormat | None:
        chosen = self._choice(node, place, [item.value for item in FileFormat])
        return FileFormat(chosen) if chosen else None

    def _choice(self, node: Node, place: str, choices: Iterable[str]) -> str | None:
        text = self._text(node, place)
        if text is None or text in choices:
            return text
        self._problem(node, place, f"{text!r} is not a choice{_nearest(text, choices)}")
        return None

    def _encoding(self, node: Node, place: str) -> str | None:
        text = self._text(node, place)
        try:
            plain = "\n".encode(text or "utf-8") == b"\n"
        except LookupError:
            self._problem(node, place, f"{text!r} is no encoding; known are UTF-8, ISO-8859-1, windows-1252 …")
            return None
        if not plain:
            self._problem(node, place, f"files in {text} are not read: convert them, iconv -f {text} -t UTF-8")
        return text

    def _zone(self, node: Node, place: str) -> str | None:
        text = self._text(node, place)
        try:
            ZoneInfo(text or "UTC")
        except (LookupError, ValueError, OSError):
            self._problem(node, place, f"{text!r} is no time zone; write one such as Europe/Berlin")
            return None
        return text

    def _type(self, node: Node, place: str) -> ColumnType | None:
        text = self._text(node, place)
        if text is None:
            return None
        if close := nearest_type(text):
            self._problem(node, place, f"{text!r} is no type; did you mean {close}?")
        return parse_type(text)

    # How YAML is walked.

    def _section(self, node: Node, place: str, known: Mapping[str, Callable[[Any, str], Any]]) -> dict[str, Any]:
        """The values of known keys; a problem for each of the others."""
        found: dict[str, Any] = {}
        for key, value in self._items(node, place):
            where = f"{place}.{key}".strip(".")
            if key not in known:
                self._problem(value, where, f"unknown key{_nearest(key, known)}")
            elif (read := known[key](value, where)) is not None:
                found[key] = read
        return found

    def _items(self, node: Node, place: str) -> list[tuple[str, Node]]:
        if node.id != "mapping":
            if not (self._is_null(node)):
                self._problem(node, place, "must be a section of NAME: VALUE")
            return []
        found: dict[str, Node] = {}
        for key, value in node.value:
            if key.value in found:
                self._problem(key, f"{place}.{key.value}".strip("."), "is there twice; keep one")
            found[str(key.value)] = value
        return list(found.items())

    def _list_of(self, one: Callable[[Any, str], T | None]) -> Callable[[Node, str], tuple[T, ...]]:
        def read(node: Node, place: str) -> tuple[T, ...]:
            nodes = node.value if node.id == "sequence" else [node]
            found = [one(item, place) for item in nodes]
            return tuple(item for item in found if item is not None)

        return read

    @staticmethod
    def _is_null(node: Node) -> bool:
        return node.id == "scalar" and node.tag.endswith(":null") and node.value in {"", "~"}

    def _is_text(self, node: Node) -> bool:
        return node.id == "scalar" and not self._is_null(node)

    def _where(self, node: Node, place: str) -> str:
        return f"{self._path}:{node.start_mark.line + 1}: {place}" if place else self._path

    def _problem(self, node: Node, place: str, text: str) -> None:
        self.problems.append(f"{self._where(node, place)}: {text}")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(names)}"
