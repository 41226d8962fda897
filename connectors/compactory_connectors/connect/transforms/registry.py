"""Transforms and predicates by their Java class names, and the reader of ``transforms.*`` and ``predicates.*``.

The options of a Java class are the fields of its dataclass here. Documentation is generated from them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import getdoc
from typing import Any

from ..setting import Setting, boolean, nearest, nearest_class, options_of, read_options, rejection
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
"""The key of a function after the transforms."""

_KAFKA = "org.apache.kafka.connect.transforms."
_JCUSTENBORDER = "com.github.jcustenborder.kafka.connect.transform.common."


@dataclass(frozen=True, slots=True)
class Entry:
    """A Java class: its options, the constructor that takes them in order, and a summary."""

    options: tuple[Setting, ...]
    build: Callable[..., Any]
    summary: str


def _sided(prefix: str, *kinds: Any) -> dict[str, Entry]:
    """Return the ``$Key`` and ``$Value`` forms of transforms."""
    return {
        f"{prefix}{kind.__name__}${side}": Entry(options_of(kind), partial(kind, Side(side)), getdoc(kind) or "")
        for kind in kinds
        for side in ("Key", "Value")
    }


def _plain(prefix: str, *kinds: Any) -> dict[str, Entry]:
    return {f"{prefix}{kind.__name__}": Entry(options_of(kind), kind, getdoc(kind) or "") for kind in kinds}


REGISTRY: Mapping[str, Entry] = dict(
    sorted(
        {
            **_sided(_JCUSTENBORDER, ChangeCase),
            **_sided(_KAFKA, Cast, ExtractField, Flatten, HoistField, InsertField, MaskField, ReplaceField),
            **_sided(_KAFKA, SetSchemaMetadata, TimestampConverter),
            **_plain(_KAFKA, Filter, RegexRouter, ValueToKey),
        }.items()
    )
)
PREDICATES: Mapping[str, Entry] = _plain(f"{_KAFKA}predicates.", RecordIsTombstone, TopicNameMatches)


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
    """A transform of a chain: its alias in the configuration, its Java class, and its condition."""

    alias: str
    class_name: str
    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False

    @property
    def key(self) -> str:
        """Return the key prefix of the transform in the configuration."""
        return self.alias if isinstance(self.transform, FunctionTransform) else f"transforms.{self.alias}"


def read_transforms(
    aliases: Iterable[str],
    settings: Mapping[str, str],
    *,
    predicates: Iterable[str] = (),
    predicate_options: Mapping[str, str] | None = None,
    function: str | None = None,
) -> tuple[tuple[TransformSpec, ...], list[str]]:
    """Return the chain of ``aliases``, and all problems, each after its key; with problems the chain is empty.

    ``settings`` are ``transforms.*`` and ``predicate_options`` are ``predicates.*``, without the prefixes. ``function``
    is ``compactory.transform``, the last of the chain.
    """
    problems: list[str] = []
    conditions: dict[str, Predicate | None] = {
        alias: _build(f"predicates.{alias}", options, PREDICATES, "predicate", problems)
        for alias, options in _sections("predicates", predicates, predicate_options or {}, problems).items()
    }
    specs: list[TransformSpec] = []
    for alias, options in _sections("transforms", aliases, settings, problems).items():
        key, class_name = f"transforms.{alias}", options.get("type", "")
        predicate, negate = _condition(key, options, conditions, problems)
        transform = _build(key, options, REGISTRY, "transform", problems)
        if transform is not None:
            specs.append(TransformSpec(alias, class_name, transform, predicate, negate))
    if function:
        try:
            specs.append(TransformSpec(FUNCTION, function, load_function(function)))
        except ValueError as error:
            problems.append(f"{FUNCTION}: {error}")
    return () if problems else tuple(specs), problems


def _sections(
    prefix: str, aliases: Iterable[str], settings: Mapping[str, str], problems: list[str]
) -> dict[str, dict[str, str]]:
    """Return the options of each alias. Adds problems for aliases listed twice, and for options without an alias."""
    listed = tuple(aliases)
    problems += [
        f"{prefix}: {alias} is listed more than once" for alias in dict.fromkeys(listed) if listed.count(alias) > 1
    ]
    options: dict[str, dict[str, str]] = {alias: {} for alias in listed}
    for key, text in settings.items():
        aliases_of_key = [alias for alias in options if key.startswith(f"{alias}.")]
        for alias in aliases_of_key:
            options[alias][key.removeprefix(f"{alias}.")] = text
        if not aliases_of_key:
            alias = key.partition(".")[0]
            problems.append(f"{prefix}.{key}: {alias} is not in {prefix}{nearest(alias, listed)}")
    return options


def _condition(
    key: str, options: dict[str, str], predicates: Mapping[str, Predicate | None], problems: list[str]
) -> tuple[Predicate | None, bool]:
    """Return the predicate of a transform, and True if it is negated. Removes both options from ``options``."""
    name, negated = options.pop("predicate", ""), options.pop("negate", None)
    if name and name not in predicates:
        problems.append(f"{key}.predicate: {name} is not in predicates{nearest(name, predicates)}")
    negate = False
    try:
        negate = boolean(negated or "false")
    except ValueError as error:
        problems.append(f"{key}.negate: {rejection(error, f', not {negated!r}')}")
    if negated is not None and not name:
        problems.append(f"{key}.negate: there is no predicate to negate; set predicate, or leave negate out")
    return predicates.get(name), negate


def _build(key: str, options: dict[str, str], registry: Mapping[str, Entry], noun: str, problems: list[str]) -> Any:
    """Return the object of the class ``type`` and its options; None after a problem."""
    class_name = options.pop("type", "")
    entry = registry.get(class_name) or {_short(name): entry for name, entry in registry.items()}.get(class_name)
    if entry is None:
        problems.append(f"{key}.type: {_unknown_class(class_name, registry, noun)}")
        return None
    values, option_problems = read_options(class_name, entry.options, options)
    problems += [f"{key}.{problem}" for problem in option_problems]
    try:
        return None if option_problems else entry.build(*values.values())
    except ValueError as error:
        problems.append(f"{key}: {error}")
        return None


def _unknown_class(class_name: str, registry: Mapping[str, Entry], noun: str) -> str:
    """Return why a class that is not in the registry is refused."""
    if not class_name:
        return f"missing; name the Java class of the {noun}"
    if (short := _short(class_name).split("$")[0]) in _REFUSED:
        return f"{short} is not supported: {_REFUSED[short]}"
    if sides := [name for name in registry if name.startswith((f"{class_name}$", f".{class_name}$"))]:
        return f"{class_name} has two forms; write {' or '.join(sides)}"
    refused = f"{class_name} is not a {noun} that Compactory knows"
    if near := nearest_class(class_name, registry):
        return refused + near
    supported = dict.fromkeys(_short(name).split("$")[0] for name in registry)
    return f"{refused}; it knows {', '.join(supported)}"


def _short(class_name: str) -> str:
    return class_name.rsplit(".", 1)[-1]
