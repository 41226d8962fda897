"""Single message transforms by their Java class names, and the reading of ``transforms`` and ``transforms.*``.

A module per transform. What a class is called and which options it has stands in the class itself; ``REGISTRY`` is the
list, from which documentation is generated too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..setting import Setting, nearest, nearest_class, rejected
from .change_case import ChangeCase
from .extract_field import ExtractField
from .timestamp_converter import TimestampConverter
from .transform import Factory, Side, Transform, TransformError
from .value_to_key import ValueToKey

__all__ = ["REGISTRY", "TransformError", "TransformSpec", "read_transforms"]

_KAFKA = "org.apache.kafka.connect.transforms."
_JCUSTENBORDER = "com.github.jcustenborder.kafka.connect.transform.common."


@dataclass(frozen=True, slots=True)
class _Entry:
    """A Java class: the options it takes and how it is built of them."""

    options: tuple[Setting, ...]
    build: Factory


def _sided(prefix: str, kind: Any) -> dict[str, _Entry]:
    """The ``$Key`` and ``$Value`` forms of a transform."""
    return {
        f"{prefix}{kind.__name__}${side}": _Entry(kind.options, partial(kind.read, Side(side)))
        for side in ("Key", "Value")
    }


REGISTRY: Mapping[str, _Entry] = {
    **_sided(_JCUSTENBORDER, ChangeCase),
    **_sided(_KAFKA, ExtractField),
    **_sided(_KAFKA, TimestampConverter),
    f"{_KAFKA}ValueToKey": _Entry(ValueToKey.options, ValueToKey.read),
}

_SIDED = (
    "Cast",
    "Flatten",
    "HoistField",
    "InsertField",
    "MaskField",
    "ReplaceField",
    "SetSchemaMetadata",
    "HeaderFrom",
)
_SIDELESS = ("DropHeaders", "Filter", "InsertHeader", "RegexRouter", "TimestampRouter")
_NOT_YET = frozenset(
    [f"{_KAFKA}{name}${side}" for name in _SIDED for side in ("Key", "Value")] + [_KAFKA + name for name in _SIDELESS]
)


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """One transform of a chain: its alias in the configuration, its Java class and what it does."""

    alias: str
    class_name: str
    transform: Transform


def read_transforms(aliases: Iterable[str], settings: Mapping[str, str]) -> tuple[tuple[TransformSpec, ...], list[str]]:
    """The chain of ``aliases`` from the ``transforms.*`` settings (prefix removed), and every problem found."""
    specs: list[TransformSpec] = []
    problems: list[str] = []
    listed = tuple(aliases)
    problems += [
        f"transforms: {alias} is listed more than once" for alias in dict.fromkeys(listed) if listed.count(alias) > 1
    ]
    for key in settings:
        if not any(key.startswith(f"{alias}.") for alias in listed):
            alias = key.split(".")[0]
            problems.append(f"transforms.{key}: {alias} is not in transforms{nearest(alias, listed)}")
    for alias in dict.fromkeys(listed):
        prefix = f"{alias}."
        below = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
        spec, found = _read_one(alias, below)
        problems += [f"transforms.{alias}{problem}" for problem in found]
        if spec:
            specs.append(spec)
    return tuple(specs), problems


def _read_one(alias: str, below: dict[str, str]) -> tuple[TransformSpec | None, list[str]]:
    class_name = below.pop("type", "")
    problems = [
        f".{key}: predicates are not supported yet; leave it out" for key in ("predicate", "negate") if key in below
    ]
    entry = REGISTRY.get(class_name)
    if entry is None:
        return None, [*problems, f".type: {_unknown_class(class_name)}"]
    values: dict[str, Any] = {}
    known = {option.name: option for option in entry.options}
    problems += [
        f".{key}: unknown option of {class_name.rsplit('.', 1)[1]}{nearest(key, known)}"
        for key in sorted(below.keys() - known.keys() - {"predicate", "negate"})
    ]
    for option in entry.options:
        written = below.get(option.name, option.default)
        if written is None:
            problems.append(f".{option.name}: missing; {option.meaning}")
            continue
        try:
            values[option.name] = option.parse(written)
        except ValueError as error:
            problems.append(f".{option.name}: {rejected(error, f', not {written!r}')}")
    if problems:
        return None, problems
    try:
        return TransformSpec(alias, class_name, entry.build(values)), []
    except ValueError as error:
        return None, [f": {error}"]


def _unknown_class(class_name: str) -> str:
    if not class_name:
        return "missing; name the Java class of the transform"
    if class_name in _NOT_YET:
        return f"{class_name} is not supported yet"
    return f"{class_name} is not a transform that Compactory knows{nearest_class(class_name, REGISTRY)}"
