"""The reading of ``transforms``, ``transforms.*``, ``predicates`` and ``predicates.*``: every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...setting import boolean, nearest, rejected
from .function import FunctionTransform, load_function
from .predicate import Predicate
from .registry import PREDICATES, REGISTRY, Entry, find, unknown_class
from .transform import Transform

__all__ = ["FUNCTION", "TransformSpec", "read_transforms"]

FUNCTION = "compactory.transform"
"""The key of a function behind the transforms."""

_BLANKS = "".join(map(chr, range(33)))
"""What Java's ``trim`` takes off; Kafka trims every option."""

_CONDITIONS = ("predicate", "negate")
"""Options that every transform has."""


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """One transform of a chain: its alias in the configuration, its Java class, what it does, and when."""

    alias: str
    class_name: str
    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False

    @property
    def place(self) -> str:
        """Where it stands in the configuration."""
        return self.alias if isinstance(self.transform, FunctionTransform) else f"transforms.{self.alias}"


def read_transforms(
    aliases: Iterable[str],
    settings: Mapping[str, str],
    *,
    predicates: Iterable[str] = (),
    predicate_options: Mapping[str, str] | None = None,
    function: str | None = None,
) -> tuple[tuple[TransformSpec, ...], list[str]]:
    """The chain of ``aliases``, and every problem found, each with its place.

    ``settings`` are ``transforms.*`` and ``predicate_options`` are ``predicates.*``, prefixes removed; ``function`` is
    ``compactory.transform``, which becomes the last of the chain.
    """
    specs: list[TransformSpec] = []
    conditions, problems = _read_predicates(predicates, predicate_options or {})
    listed = tuple(aliases)
    problems += _aliases("transforms", listed, settings)
    for alias in dict.fromkeys(listed):
        spec, found = _read_one(alias, _below(alias, settings), conditions)
        problems += [f"transforms.{alias}{problem}" for problem in found]
        if spec:
            specs.append(spec)
    if function:
        try:
            specs.append(TransformSpec(FUNCTION, function, load_function(function)))
        except ValueError as error:
            problems.append(f"{FUNCTION}: {error}")
    return tuple(specs), problems


def _read_predicates(
    aliases: Iterable[str], settings: Mapping[str, str]
) -> tuple[dict[str, Predicate | None], list[str]]:
    """The predicates by their aliases, None where something is wrong with one."""
    listed = tuple(aliases)
    problems = list(_aliases("predicates", listed, settings))
    predicates: dict[str, Predicate | None] = {}
    for alias in dict.fromkeys(listed):
        below = _below(alias, settings)
        predicates[alias], found = _built(below.pop("type", ""), below, PREDICATES, "predicate")
        problems += [f"predicates.{alias}{problem}" for problem in found]
    return predicates, problems


def _aliases(what: str, listed: tuple[str, ...], settings: Mapping[str, str]) -> Iterator[str]:
    for alias in dict.fromkeys(listed):
        if listed.count(alias) > 1:
            yield f"{what}: {alias} is listed more than once"
    for key in settings:
        if not any(key.startswith(f"{alias}.") for alias in listed):
            alias = key.split(".")[0]
            yield f"{what}.{key}: {alias} is not in {what}{nearest(alias, listed)}"


def _below(alias: str, settings: Mapping[str, str]) -> dict[str, str]:
    prefix = f"{alias}."
    return {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def _read_one(
    alias: str, below: dict[str, str], predicates: Mapping[str, Predicate | None]
) -> tuple[TransformSpec | None, list[str]]:
    class_name = below.pop("type", "")
    conditions = {key: below.pop(key) for key in _CONDITIONS if key in below}
    predicate, negate, problems = _condition(conditions, predicates)
    transform, found = _built(class_name, below, REGISTRY, "transform")
    problems += found
    if problems or transform is None:
        return None, problems
    return TransformSpec(alias, class_name, transform, predicate, negate), []


def _condition(
    written: Mapping[str, str], predicates: Mapping[str, Predicate | None]
) -> tuple[Predicate | None, bool, list[str]]:
    problems: list[str] = []
    name = written.get("predicate", "")
    if name and name not in predicates:
        problems.append(f".predicate: {name} is not in predicates{nearest(name, predicates)}")
    negate, inverted = False, written.get("negate", "false")
    try:
        negate = boolean(inverted)
    except ValueError as error:
        problems.append(f".negate: {rejected(error, f', not {inverted!r}')}")
    if "negate" in written and not name:
        problems.append(".negate: there is no predicate to negate; set predicate, or leave negate out")
    return predicates.get(name), negate, problems


def _built(
    class_name: str, below: Mapping[str, str], registry: Mapping[str, Entry], what: str
) -> tuple[Any, list[str]]:
    entry = find(class_name, registry)
    if entry is None:
        return None, [f".type: {unknown_class(class_name, registry, what)}"]
    values: dict[str, Any] = {}
    known = {option.name: option for option in entry.options}
    problems = [
        f".{key}: unknown option of {class_name.rsplit('.', 1)[-1]}{nearest(key, known)}"
        for key in sorted(below.keys() - known.keys())
    ]
    for option in entry.options:
        written = below.get(option.name, option.default)
        if written is None:
            problems.append(f".{option.name}: missing; {option.meaning}")
            continue
        try:
            values[option.name] = option.parse(written.strip(_BLANKS))
        except ValueError as error:
            problems.append(f".{option.name}: {rejected(error, f', not {written!r}')}")
    if problems:
        return None, problems
    try:
        return entry.build(values), []
    except ValueError as error:
        return None, [f": {error}"]
