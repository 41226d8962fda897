"""How records of one shape become rows of one table: which field goes to which column, and as what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from compactory_connectors.source.record.schema import Schema, Type

from ..failure import RecordRefused
from ..record import SinkRecord
from .decoding import Decoded
from .sink_config import SinkConfig
from .target import Target, conversion

__all__ = ["Plan", "Row", "Wanted", "columns_of", "kafka_columns", "plan_of"]

Row: TypeAlias = list[Any]
Wanted: TypeAlias = dict[str, tuple[str, str, Schema | None]]
"""Columns: where the value comes from (record, key, whole key, value), under which name, with which schema.

They are in this order, as no mode takes its primary key from two places.
"""

_KAFKA = ("__connect_topic", "__connect_partition", "__connect_offset")
_PLACES: tuple[tuple[str, str, Schema], ...] = (
    ("record", "topic", Schema(type=Type.STRING)),
    ("record", "partition", Schema(type=Type.INT32)),
    ("record", "offset", Schema(type=Type.INT64)),
)


def kafka_columns(config: SinkConfig) -> tuple[str, ...]:
    """Names of the columns of topic, partition and offset."""
    return config.pk_fields or _KAFKA


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """``columns`` begin with ``key``, those of the primary key; ``row`` makes a row of a record, in their order.

    ``deletes``: records of this shape are tombstones.
    """

    target: Target
    columns: tuple[str, ...]
    key: tuple[str, ...]
    deletes: bool
    row: Callable[[SinkRecord, Any, Any], Row]


def columns_of(config: SinkConfig, key: Decoded | None, value: Decoded | None) -> tuple[Wanted, tuple[str, ...]]:
    """The columns that a record has something for, those of the primary key first. Raises RecordRefused."""
    wanted: Wanted = {}
    fields = {} if value is None else _fields(value, "value")
    if config.pk_mode == "record_key":
        wanted |= _key_columns(config, key)
    elif config.pk_mode == "record_value":
        for name in config.pk_fields or fields:
            if name not in fields:
                raise RecordRefused(f"the value has no field {name!r}, which pk.fields names")
            wanted[name] = ("value", name, fields[name])
    elif config.pk_mode == "kafka":
        names = kafka_columns(config)
        wanted |= dict(zip(names, _PLACES, strict=True))
    primary = tuple(wanted)
    for name, schema in fields.items():
        if name not in wanted and (not config.whitelist or name in config.whitelist):
            wanted[name] = ("value", name, schema)
    return wanted, primary


def _key_columns(config: SinkConfig, key: Decoded | None) -> Wanted:
    if key is None:
        raise RecordRefused("has no key, and pk.mode is record_key")
    if not isinstance(key.value, dict):
        if len(config.pk_fields) != 1:
            raise RecordRefused("its key is one value: name the column in pk.fields")
        return {config.pk_fields[0]: ("whole key", "", key.schema)}
    fields = _fields(key, "key")
    for name in config.pk_fields or fields:
        if name not in fields:
            raise RecordRefused(f"the key has no field {name!r}, which pk.fields names")
    return {name: ("key", name, fields[name]) for name in config.pk_fields or fields}


def _fields(half: Decoded, what: str) -> dict[str, Schema | None]:
    if half.schema is not None and half.schema.type is Type.STRUCT:
        if not isinstance(half.value, dict):
            raise RecordRefused(f"its {what} does not fit its schema")
        return {field.name: field.schema for field in half.schema.fields}
    if not isinstance(half.value, dict):
        raise RecordRefused(f"its {what} is no struct of fields")
    return dict.fromkeys(half.value)


def plan_of(target: Target, wanted: Wanted, key: tuple[str, ...], *, deletes: bool) -> Plan:
    """The plan. All columns must be in the table."""
    names: dict[str, list[str]] = defaultdict(list)
    for source, name, _ in wanted.values():
        names[source].append(name)
    conversions = [
        (number, found.fits, found.convert)
        for number, (column, (_, _, schema)) in enumerate(wanted.items())
        if (found := conversion(schema, target.columns[column])) is not None
    ]
    of_record = attrgetter(*names["record"]) if names["record"] else _nothing
    of_key = (lambda key: (key,)) if "whole key" in names else _fields_of(names["key"])
    of_value = _fields_of(names["value"])

    def row(record: SinkRecord, key: Any, value: Any) -> Row:
        found = [*of_record(record), *of_key(key), *of_value(value)]
        for number, fits, convert in conversions:
            given = found[number]
            if given is not None and given.__class__ is not fits:
                found[number] = convert(given)
        return found

    return Plan(target, tuple(wanted), key, deletes, row)


def _nothing(_: object) -> tuple[()]:
    return ()


def _fields_of(names: Sequence[str]) -> Callable[[Any], Iterable[Any]]:
    """Those fields of a struct; one that it does not have is null."""
    if not names:
        return _nothing
    get = itemgetter(*names) if len(names) > 1 else lambda struct: (struct[names[0]],)

    def fields(struct: Any) -> Iterable[Any]:
        try:
            return get(struct)
        except KeyError:
            return map(struct.get, names)

    return fields
