"""How records of one shape become rows of one table: which field goes to which column, and as what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter, methodcaller
from types import NoneType
from typing import Any, TypeAlias

from compactory_connectors.source.record.schema import Schema, Type

from ..failure import RecordRefused
from ..record import SinkRecord
from .decoding import Decoded
from .sink_config import SinkConfig
from .target import Conversion, Target, conversion

__all__ = ["Plan", "Row", "Wanted", "columns_of", "kafka_columns", "plan_of"]

Row: TypeAlias = tuple[Any, ...]
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
    """``columns`` begin with ``key``, those of the primary key; ``rows`` makes rows of records, keys and values.

    ``deletes``: records of this shape are tombstones.
    """

    target: Target
    columns: tuple[str, ...]
    key: tuple[str, ...]
    deletes: bool
    rows: Callable[[Sequence[SinkRecord], Sequence[Any], Sequence[Any]], list[Row]]


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
    if not wanted:
        raise RecordRefused("has no field to write")
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
    fields = [(source, _getter(*place)) for place in wanted.values() for source in place[:1]]
    conversions = {
        number: found
        for number, (column, (_, _, schema)) in enumerate(wanted.items())
        if (found := conversion(schema, target.columns[column])) is not None
    }
    return Plan(target, tuple(wanted), key, deletes, _Rows(fields, conversions))


_Convert = Callable[[Any], Any]


class _Rows:
    """Makes rows, column by column: nearly all of the work is done by C."""

    def __init__(
        self, fields: Sequence[tuple[str, Callable[[Any], Any]]], conversions: Mapping[int, Conversion]
    ) -> None:
        self._fields = fields
        self._conversions = conversions

    def __call__(self, records: Sequence[SinkRecord], keys: Sequence[Any], values: Sequence[Any]) -> list[Row]:
        halves = {"record": records, "key": keys, "whole key": keys, "value": values}
        columns = [list(map(get, halves[source])) for source, get in self._fields]
        for number, (fits, convert) in self._conversions.items():
            column = columns[number]
            if not {fits, NoneType}.issuperset(map(type, column)):
                columns[number] = [
                    value if value is None or value.__class__ is fits else convert(value) for value in column
                ]
        return list(zip(*columns, strict=True))


def _getter(source: str, name: str, schema: Schema | None) -> _Convert:
    if source == "record":
        return attrgetter(name)
    if source == "whole key":
        return _itself
    return itemgetter(name) if schema is None else methodcaller("get", name)  # a field that is left out is null


def _itself(value: Any) -> Any:
    return value
