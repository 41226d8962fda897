"""Transforms and predicates by their Java class names, and the reading of ``transforms.*`` and ``predicates.*``.

A class's options are the fields of the dataclass that stands for it; documentation is generated from them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import getdoc
from typing import Any

from ..setting import Setting, boolean, nearest, nearest_class, options_of, read_options, rejected
from .cast import Cast
from .change_case import ChangeCase
from .fields import InsertField, MaskField, ReplaceField
from .function import FunctionTransform, load_function
from .routing import Filter, Predicate, RecordIsTombstone, RegexRouter, TopicNameMatches
from .structs import ExtractField, Flatten, HoistField, SetSchemaMetadata, ValueToKey
from .timestamp_converter import TimestampConverter
from .transform import Side, Transform

__all__ = ["PREDICATES", "REGISTRY", "Entry", "TransformSpec", "read_transforms"]

FUNCTION = "compactory.transform"
"""The key of a function behind the transforms."""

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
            **_sided(_KAFKA, Cast, ExtractField, Flatten, HoistField, InsertField, MaskField, ReplaceField),
            **_sided(_KAFKA, SetSchemaMetadata, TimestampConverter),
            **_whole(_KAFKA, Filter, RegexRouter, ValueToKey),
        }.items()
    )
)
PREDICATES: Mapping[str, Entry] = _whole(f"{_KAFKA}predicates.", RecordIsTombstone, TopicNameMatches)


_NO_HEADERS = "records have no headers here; keep the field in the value, or add one with InsertField"
_REFUSED = {
    "DropHeaders": _NO_HEADERS,
    "HasHeaderKey": _NO_HEADERS,
    "HeaderFrom": _NO_HEADERS,
    "InsertHeader": _NO_HEADERS,
    "TimestampRouter": "a row's records would end up in several topics; name one topic with RegexRouter",
}
"""Classes of Kafka Connect that are left out, without package and side, each with the nearest thing that works."""


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
    """The chain of ``aliases``, or every problem found, each with its place.

    ``settings`` are ``transforms.*`` and ``predicate_options`` are ``predicates.*``, prefixes removed; ``function`` is
    ``compactory.transform``, which becomes the last of the chain.
    """
    problems: list[str] = []
    conditions: dict[str, Predicate | None] = {
        alias: _built(f"predicates.{alias}", below, PREDICATES, "predicate", problems)
        for alias, below in _sections("predicates", predicates, predicate_options or {}, problems)
    }
    specs: list[TransformSpec] = []
    for alias, below in _sections("transforms", aliases, settings, problems):
        place, class_name = f"transforms.{alias}", below.get("type", "")
        predicate, negate = _condition(place, below, conditions, problems)
        transform = _built(place, below, REGISTRY, "transform", problems)
        if transform is not None:
            specs.append(TransformSpec(alias, class_name, transform, predicate, negate))
    if function:
        try:
            specs.append(TransformSpec(FUNCTION, function, load_function(function)))
        except ValueError as error:
            problems.append(f"{FUNCTION}: {error}")
    return () if problems else tuple(specs), problems


def _sections(
    what: str, aliases: Iterable[str], settings: Mapping[str, str], problems: list[str]
) -> list[tuple[str, dict[str, str]]]:
    """Each alias with its options; notes aliases that are listed twice, and options of none."""
    listed = tuple(aliases)
    problems += [
        f"{what}: {alias} is listed more than once" for alias in dict.fromkeys(listed) if listed.count(alias) > 1
    ]
    for key in settings:
        if not any(key.startswith(f"{alias}.") for alias in listed):
            alias = key.split(".")[0]
            problems.append(f"{what}.{key}: {alias} is not in {what}{nearest(alias, listed)}")
    return [
        (alias, {key.removeprefix(f"{alias}."): text for key, text in settings.items() if key.startswith(f"{alias}.")})
        for alias in dict.fromkeys(listed)
    ]


def _condition(
    place: str, below: dict[str, str], predicates: Mapping[str, Predicate | None], problems: list[str]
) -> tuple[Predicate | None, bool]:
    """The predicate of a transform, and whether it is turned round; takes both options out of ``below``."""
    name, inverted = below.pop("predicate", ""), below.pop("negate", None)
    if name and name not in predicates:
        problems.append(f"{place}.predicate: {name} is not in predicates{nearest(name, predicates)}")
    negate = False
    try:
        negate = boolean(inverted or "false")
    except ValueError as error:
        problems.append(f"{place}.negate: {rejected(error, f', not {inverted!r}')}")
    if inverted is not None and not name:
        problems.append(f"{place}.negate: there is no predicate to negate; set predicate, or leave negate out")
    return predicates.get(name), negate


def _built(place: str, below: dict[str, str], registry: Mapping[str, Entry], what: str, problems: list[str]) -> Any:
    """The object that the class ``type`` makes of its options; None where something is wrong with them."""
    class_name = below.pop("type", "")
    entry = _find(class_name, registry)
    if entry is None:
        problems.append(f"{place}.type: {_unknown_class(class_name, registry, what)}")
        return None
    values, found = read_options(class_name, entry.options, below)
    problems += [f"{place}.{problem}" for problem in found]
    try:
        return None if found else entry.build(*values.values())
    except ValueError as error:
        problems.append(f"{place}: {error}")
        return None


def _find(class_name: str, registry: Mapping[str, Entry]) -> Entry | None:
    """The entry of a class, by its full name or, as Kafka Connect takes it too, without its package."""
    by_short = {_short(name): entry for name, entry in registry.items()}
    return registry.get(class_name) or by_short.get(class_name)


def _unknown_class(class_name: str, registry: Mapping[str, Entry], what: str) -> str:
    """Why a class that is not in the registry is refused."""
    if not class_name:
        return f"missing; name the Java class of the {what}"
    if (short := _short(class_name).split("$")[0]) in _REFUSED:
        return f"{short} is not supported: {_REFUSED[short]}"
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
