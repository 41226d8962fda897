"""Transforms and predicates by their Java class names, and the reading of ``transforms.*`` and ``predicates.*``.

A class's options are the fields of the dataclass that stands for it; documentation is generated from them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import getdoc
from typing import Any

from ...setting import Setting, boolean, nearest, nearest_class, options_of, read_options, rejected
from .cast import Cast
from .change_case import ChangeCase
from .fields import DropHeaders, HeaderFrom, InsertField, InsertHeader, MaskField, ReplaceField
from .function import FunctionTransform, load_function
from .routing import (
    Filter,
    HasHeaderKey,
    Predicate,
    RecordIsTombstone,
    RegexRouter,
    TimestampRouter,
    TopicNameMatches,
)
from .structs import ExtractField, Flatten, HoistField, SetSchemaMetadata, ValueToKey
from .timestamp_converter import TimestampConverter
from .transform import Side, Transform

__all__ = ["PREDICATES", "REGISTRY", "Entry", "TransformSpec", "read_transforms"]

FUNCTION = "compactory.transform"
"""The key of a function behind the transforms."""

_CONDITIONS = ("predicate", "negate")
"""Options that every transform has."""
_KAFKA = "org.apache.kafka.connect.transforms."
_JCUSTENBORDER = "com.github.jcustenborder.kafka.connect.transform.common."


@dataclass(frozen=True, slots=True)
class Entry:
    """A Java class: the options it takes, how it is built of them, and what it does in a word."""

    options: tuple[Setting, ...]
    build: Callable[..., Any]
    summary: str


def _sided(prefix: str, *kinds: Any) -> dict[str, Entry]:
    """The ``$Key`` and ``$Value`` forms of transforms."""
    return {
        f"{prefix}{kind.__name__}${side}": Entry(options_of(kind), partial(kind, Side(side)), getdoc(kind) or "")
        for kind in kinds
        for side in ("Key", "Value")
    }


def _whole(prefix: str, *kinds: Any) -> dict[str, Entry]:
    return {f"{prefix}{kind.__name__}": Entry(options_of(kind), kind, getdoc(kind) or "") for kind in kinds}


REGISTRY: Mapping[str, Entry] = dict(
    sorted(
        {
            **_sided(_JCUSTENBORDER, ChangeCase),
            **_sided(_KAFKA, Cast, ExtractField, Flatten, HeaderFrom, HoistField, InsertField, MaskField, ReplaceField),
            **_sided(_KAFKA, SetSchemaMetadata, TimestampConverter),
            **_whole(_KAFKA, DropHeaders, Filter, InsertHeader, RegexRouter, TimestampRouter, ValueToKey),
        }.items()
    )
)
PREDICATES: Mapping[str, Entry] = _whole(f"{_KAFKA}predicates.", HasHeaderKey, RecordIsTombstone, TopicNameMatches)


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
    entry = _find(class_name, registry)
    if entry is None:
        return None, [f".type: {_unknown_class(class_name, registry, what)}"]
    values, problems = read_options(class_name, entry.options, below)
    if problems:
        return None, [f".{problem}" for problem in problems]
    try:
        return entry.build(*values.values()), []
    except ValueError as error:
        return None, [f": {error}"]


def _find(class_name: str, registry: Mapping[str, Entry]) -> Entry | None:
    """The entry of a class, by its full name or, as Kafka Connect takes it too, without its package."""
    by_short = {_short(name): entry for name, entry in registry.items()}
    return registry.get(class_name) or by_short.get(class_name)


def _unknown_class(class_name: str, registry: Mapping[str, Entry], what: str) -> str:
    """Why a class that is not in the registry is refused."""
    if not class_name:
        return f"missing; name the Java class of the {what}"
    if sides := [name for name in registry if name.startswith((f"{class_name}$", f".{class_name}$"))]:
        return f"{class_name} has two forms; write {' or '.join(sides)}"
    refused = f"{class_name} is not a {what} that Compactory knows"
    if near := nearest_class(class_name, registry):
        return refused + near
    return f"{refused}; it knows {', '.join(_listed(registry))}"


def _listed(registry: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(_short(name).split("$")[0] for name in registry)


def _short(class_name: str) -> str:
    return class_name.rsplit(".", 1)[-1]
