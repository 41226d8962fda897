"""The Java classes of transforms and predicates, and what stands for each here; documentation is generated from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import getdoc
from typing import Any

from ...setting import Setting, nearest_class
from .cast import Cast
from .change_case import ChangeCase
from .extract_field import ExtractField
from .filter import Filter
from .flatten import Flatten
from .header import DropHeaders, HeaderFrom, InsertHeader
from .hoist_field import HoistField
from .insert_field import InsertField
from .mask_field import MaskField
from .predicate import HasHeaderKey, RecordIsTombstone, TopicNameMatches
from .regex_router import RegexRouter
from .replace_field import ReplaceField
from .set_schema_metadata import SetSchemaMetadata
from .timestamp_converter import TimestampConverter
from .timestamp_router import TimestampRouter
from .transform import Side
from .value_to_key import ValueToKey

__all__ = ["PREDICATES", "REGISTRY", "Entry", "find", "unknown_class"]

_KAFKA = "org.apache.kafka.connect.transforms."
_JCUSTENBORDER = "com.github.jcustenborder.kafka.connect.transform.common."


@dataclass(frozen=True, slots=True)
class Entry:
    """A Java class: the options it takes, how it is built of them, and what it does in a word."""

    options: tuple[Setting, ...]
    build: Callable[[Mapping[str, Any]], Any]
    summary: str


def _sided(prefix: str, *kinds: Any) -> dict[str, Entry]:
    """The ``$Key`` and ``$Value`` forms of transforms."""
    return {
        f"{prefix}{kind.__name__}${side}": Entry(kind.options, partial(kind.read, Side(side)), getdoc(kind) or "")
        for kind in kinds
        for side in ("Key", "Value")
    }


def _whole(prefix: str, *kinds: Any) -> dict[str, Entry]:
    return {f"{prefix}{kind.__name__}": Entry(kind.options, kind.read, getdoc(kind) or "") for kind in kinds}


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


def find(class_name: str, registry: Mapping[str, Entry]) -> Entry | None:
    """The entry of a class, by its full name or, as Kafka Connect takes it too, without its package."""
    by_short = {_short(name): entry for name, entry in registry.items()}
    return registry.get(class_name) or by_short.get(class_name)


def unknown_class(class_name: str, registry: Mapping[str, Entry], what: str) -> str:
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
