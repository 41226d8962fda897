"""A rules file: YAML read and checked, every problem at once with its line. Pure.

Texts are taken as they are written: ``NO``, ``2024-01-01`` and ``007`` in a list of allowed values are these letters
and digits, and neither a truth value, a date nor a number, as they would be to YAML 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ValidationError

from compactory.errors import ConfigError, extra_remedy
from compactory.nearest import nearest_or_all
from compactory_connectors.connect.config.config_file import read_text

from .rules import PLACE, Check, ColumnRule, ReadOptions, Reference, Rules

__all__ = ["parse_rules", "read_rules"]

Node: TypeAlias = Any
"""A node of PyYAML, which is imported at the first use; its stubs lack ``id``."""
_Keys: TypeAlias = tuple[str | int, ...]
_SECTIONS: Final[Mapping[str, type[BaseModel]]] = {"read": ReadOptions, "columns": ColumnRule, "checks": Check}
_MESSAGES: Final = {
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "model_type": "must be a section of NAME: VALUE",
    "model_attributes_type": "must be a section of NAME: VALUE",
    "dict_type": "must be a section of NAME: VALUE",
    "mapping_type": "must be a section of NAME: VALUE",
}


def read_rules(path: Path) -> Rules:
    """Return the rules of a file. Raises ConfigError with every problem, each with file and line."""
    return parse_rules(read_text(path), str(path))


def parse_rules(text: str, path: str) -> Rules:
    """Return the rules of a text; ``path`` is named in errors. Raises ConfigError with every problem."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"rules need PyYAML: {extra_remedy('spark')}") from None
    try:
        events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
        aliases: list[Any] = [event for event in events if isinstance(event, yaml.AliasEvent)]
        if aliases:  # nested ones stand for more text than memory holds, and one may stand for itself
            raise ConfigError(
                f"{path}:{alias.start_mark.line + 1}: alias *{alias.anchor}: rules take no aliases; write the value out"
                for alias in aliases
            )
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    reader, rules = _Reader(path), Rules()
    content = reader.plain(document, ()) if document is not None else None
    try:
        rules = Rules.model_validate(content)
    except ValidationError as error:
        for problem in error.errors():
            reader.add(problem)
    if reader.problems:
        raise ConfigError(problem for _, problem in sorted(reader.problems, key=itemgetter(0)))
    return rules


class _Reader:
    """Converts a document to texts, lists and dicts, and records their lines."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._locations: dict[_Keys, tuple[int, str]] = {}
        self.problems: list[tuple[int, str]] = []
        """Positions in the text, and messages."""

    def plain(self, node: Node, at: _Keys) -> Any:
        """Return the content of a node: texts as they are written, None for nothing."""
        _, place = self._locations[at] = self._place(node, at)
        if node.id == "sequence":
            return [self.plain(item, (*at, number)) for number, item in enumerate(node.value)]
        if node.id == "scalar":
            return None if node.tag.endswith(":null") and node.value in {"", "~"} else str(node.value)
        section: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in section:
                index, twice = self._place(key, (*at, name))
                self.problems.append((index, f"{twice}: is there twice; keep one"))
            section[name] = self.plain(value, (*at, name))
        return section | ({PLACE: place} if len(at) == 2 and at[0] in {"columns", "checks"} else {})

    def add(self, error: Mapping[str, Any]) -> None:
        """Add a problem that pydantic found."""
        at, kind = error["loc"], error["type"]
        message = _MESSAGES.get(kind) or str(error.get("ctx", {}).get("error", error["msg"]))
        if kind in {"enum", "literal_error"}:
            choices = re.findall("'(.+?)'", error["ctx"]["expected"])
            message = f"{error['input']!r} is not a choice{nearest_or_all(str(error['input']), choices)}"
        if kind == "extra_forbidden":
            section = _SECTIONS.get(at[0], Rules) if len(at) > 1 else Rules
            section = Reference if "reference" in at[1:-1] else section
            existing = [field.alias or name for name, field in section.model_fields.items() if field.alias != PLACE]
            message = f"unknown key{nearest_or_all(str(at[-1]), existing)}"
        while at not in self._locations:
            at = at[:-1]
        index, place = self._locations[at]
        self.problems.append((index, f"{place}: {message}"))

    def _place(self, node: Node, at: _Keys) -> tuple[int, str]:
        mark, part = node.start_mark, ".".join(key for key in at if isinstance(key, str))
        return mark.index, f"{self._path}:{mark.line + 1}: {part}" if part else self._path
