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
"""A node of PyYAML, which is not imported before there are rules; its stubs do not know ``id``."""
_At: TypeAlias = tuple[str | int, ...]
_SECTIONS: Final[Mapping[str, type[BaseModel]]] = {"read": ReadOptions, "columns": ColumnRule, "checks": Check}
_SAID: Final = {
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "model_type": "must be a section of NAME: VALUE",
    "model_attributes_type": "must be a section of NAME: VALUE",
    "dict_type": "must be a section of NAME: VALUE",
    "mapping_type": "must be a section of NAME: VALUE",
}


def read_rules(path: Path) -> Rules:
    """The rules of a file. Raises ConfigError with every problem found, each with file and line."""
    return parse_rules(read_text(path), str(path))


def parse_rules(text: str, path: str) -> Rules:
    """The rules of a text; ``path`` is named in errors. Raises ConfigError with every problem found."""
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
    found = reader.plain(document, ()) if document is not None else None
    try:
        rules = Rules.model_validate(found)
    except ValidationError as error:
        for each in error.errors():
            reader.tell(each)
    if reader.problems:
        raise ConfigError(problem for _, problem in sorted(reader.problems, key=itemgetter(0)))
    return rules


class _Reader:
    """Makes texts, lists and dicts of a document, and remembers where they are."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._places: dict[_At, tuple[int, str]] = {}
        self.problems: list[tuple[int, str]] = []
        """With where in the text they are."""

    def plain(self, node: Node, at: _At) -> Any:
        """The content of a node: texts as they are written, None for nothing."""
        _, place = self._places[at] = self._place(node, at)
        if node.id == "sequence":
            return [self.plain(item, (*at, number)) for number, item in enumerate(node.value)]
        if node.id == "scalar":
            return None if node.tag.endswith(":null") and node.value in {"", "~"} else str(node.value)
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in found:
                index, twice = self._place(key, (*at, name))
                self.problems.append((index, f"{twice}: is there twice; keep one"))
            found[name] = self.plain(value, (*at, name))
        return found | ({PLACE: place} if len(at) == 2 and at[0] in {"columns", "checks"} else {})

    def tell(self, error: Mapping[str, Any]) -> None:
        """Add a problem that pydantic found."""
        at, kind = error["loc"], error["type"]
        said = _SAID.get(kind) or str(error.get("ctx", {}).get("error", error["msg"]))
        if kind in {"enum", "literal_error"}:
            choices = re.findall("'(.+?)'", error["ctx"]["expected"])
            said = f"{error['input']!r} is not a choice{nearest_or_all(str(error['input']), choices)}"
        if kind == "extra_forbidden":
            section = _SECTIONS.get(at[0], Rules) if len(at) > 1 else Rules
            section = Reference if "reference" in at[1:-1] else section
            known = [field.alias or name for name, field in section.model_fields.items() if field.alias != PLACE]
            said = f"unknown key{nearest_or_all(str(at[-1]), known)}"
        while at not in self._places:
            at = at[:-1]
        index, place = self._places[at]
        self.problems.append((index, f"{place}: {said}"))

    def _place(self, node: Node, at: _At) -> tuple[int, str]:
        mark, part = node.start_mark, ".".join(each for each in at if isinstance(each, str))
        return mark.index, f"{self._path}:{mark.line + 1}: {part}" if part else self._path
