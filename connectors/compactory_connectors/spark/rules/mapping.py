"""Assigns the columns of a source to those of a target before a row is read; all problems at once. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from compactory.errors import ConfigError

from ..column_types import ColumnType, parse_type
from ..target import TargetColumn
from .rules import ColumnRule, Rules

__all__ = ["Filling", "Layout", "Mapped", "map_columns"]

_DELIMITER = re.compile(r"[;,|\t]")  # in a header that was read as one column


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of some files of a source, which all have the same. ``label`` names one of them."""

    label: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """A column of the target that is filled, and its source."""

    column: TargetColumn
    type: ColumnType
    rule: ColumnRule
    required: bool

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def source(self) -> str | None:
        """The column of the source; None where an expression or a fixed value fills it."""
        if self.rule.expression is not None or self.rule.value is not None:
            return None
        return self.rule.source or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """The columns to load; the same for every file of a source."""

    fillings: tuple[Filling, ...]
    places: Mapping[str, Mapping[str, int]]
    """By layout's label: column of the target → position of the column in the layout; absent: null."""
    unused: tuple[str, ...] = ()
    """Columns of the source that are not loaded, and that the rules do not ignore."""
    keys: tuple[str, ...] = field(default=())


def map_columns(
    layouts: Sequence[Layout], columns: Sequence[TargetColumn], key: Sequence[str], rules: Rules, *, whole: bool = False
) -> Mapped:
    """Return the source of each column; with ``whole`` each must be filled. Raises ConfigError with every problem."""
    problems = _of_rules(columns, key, rules)
    fillings = [_filling(column, key, rules) for column in columns]
    named = [item for item in fillings if item.name in rules.columns]
    positions = {layout.label: _places(layout, fillings, rules) for layout in layouts}
    loaded = {name for places in positions.values() for name in places}
    filled = [item for item in fillings if whole or item.name in loaded or item in named or item.name in key]
    for layout in layouts:
        problems += _missing(layout, filled, positions[layout.label])
        problems += _twice(layout, positions[layout.label])
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    unused = dict.fromkeys(
        name for layout in layouts for name in _unused(layout, positions[layout.label], filled, rules)
    )
    return Mapped(fillings=tuple(filled), places=positions, unused=tuple(unused), keys=tuple(key))


def _filling(column: TargetColumn, key: Sequence[str], rules: Rules) -> Filling:
    rule = rules.columns.get(column.name) or ColumnRule()
    required = rule.required or column.name in key or not column.nullable
    return Filling(column=column, type=parse_type(column.type), rule=rule, required=required)


def _of_rules(columns: Sequence[TargetColumn], key: Sequence[str], rules: Rules) -> list[str]:
    names = [column.name for column in columns]
    problems = [
        f"{rule.place}: the target has no column {name!r}{_nearest(name, names)}"
        for name, rule in rules.columns.items()
        if name not in names
    ]
    if rules.key and set(rules.key) != set(key):
        problems.append(f"the rules' key is {', '.join(rules.key)}, and the target's is {', '.join(key)}")
    return problems


def _places(layout: Layout, fillings: Iterable[Filling], rules: Rules) -> dict[str, int]:
    """Return the position of each column: by its exact name, else by a name that differs in case and blanks alone."""
    exact = {name: number for number, name in reversed([*enumerate(layout.columns)])}
    folded: dict[str, list[int]] = {}
    for number, name in enumerate(layout.columns):
        folded.setdefault(_folded(name), []).append(number)
    positions = {}
    for filling in fillings:
        source = filling.source
        if source is None or (source in rules.ignore and filling.rule.source is None):
            continue
        like = folded.get(_folded(source), [])
        if source in exact:
            positions[filling.name] = exact[source]
        elif len(like) == 1 and layout.columns[like[0]] not in rules.ignore:
            positions[filling.name] = like[0]
    return positions


def _folded(name: str) -> str:
    return name.strip().casefold()


def _missing(layout: Layout, fillings: Iterable[Filling], places: Mapping[str, int]) -> list[str]:
    lacking = [item for item in fillings if item.source is not None and item.name not in places]
    if lacking and len(layout.columns) == 1 and (sign := _DELIMITER.search(layout.columns[0])):
        return [f"{layout.label} has one column, {layout.columns[0]!r}: say read.delimiter: {sign[0]!r} in the rules"]
    return [
        f"{layout.label} has no column {item.source!r}{_nearest(str(item.source), layout.columns)}{_remedy(item)}"
        for item in lacking
        if not item.rule.optional
    ]


def _remedy(item: Filling) -> str:
    if item.required and item.rule.default is None:
        return f"; {item.name} can't be null: say by `from` what fills it"
    return f"; say by `from` what fills {item.name}, or that it is `optional`"


def _twice(layout: Layout, places: Mapping[str, int]) -> list[str]:
    used = {layout.columns[number] for number in places.values()}
    return [
        f"{layout.label} has {layout.columns.count(name)} columns named {name!r}: which one is meant? rename the others"
        for name in sorted(used)
        if layout.columns.count(name) > 1
    ]


def _unused(layout: Layout, places: Mapping[str, int], fillings: Iterable[Filling], rules: Rules) -> list[str]:
    if any(item.rule.expression for item in fillings):
        return []
    used = {*places.values()}
    ordering = {item.column for item in rules.duplicates}
    return [
        name
        for number, name in enumerate(layout.columns)
        if number not in used and name not in rules.ignore and name not in ordering
    ]


def _nearest(name: str, existing: Iterable[str]) -> str:
    names = list(existing)
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f" (it has {', '.join(names)})"
