"""How records of one shape become rows of one table: which field goes to which column, and as what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from compactory_connectors.source.record.schema import Schema, Type

from ..failure import RecordRefused
from ..record import SinkRecord
from .decoding import Decoded
from .sink_config import SinkConfig
from .target import Target, adapter

__all__ = ["Plan", "Row", "Wanted", "columns_of", "kafka_columns", "plan_of"]

Row: TypeAlias = tuple[Any, ...]
Wanted: TypeAlias = dict[str, tuple[str, str, Schema | None]]
"""Columns: where the value comes from (key, value, whole key, topic …), under which name, with which schema."""

_KAFKA = ("__connect_topic", "__connect_partition", "__connect_offset")
_PLACES: tuple[tuple[str, str, Schema], ...] = (
    ("topic", "", Schema(type=Type.STRING)),
    ("partition", "", Schema(type=Type.INT32)),
    ("offset", "", Schema(type=Type.INT64)),
)


def kafka_columns(config: SinkConfig) -> tuple[str, ...]:
    """Names of the columns of topic, partition and offset."""
    return config.pk_fields or _KAFKA


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """``columns`` begin with ``key``, those of the primary key; ``row`` makes a row of a record, in their order."""

    target: Target
    columns: tuple[str, ...]
    key: tuple[str, ...]
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


def plan_of(target: Target, wanted: Wanted, key: tuple[str, ...]) -> Plan:
    """The plan. All columns must be in the table."""
    parts = [
        _part(source, name, adapter(schema, target.columns[column]))
        for column, (source, name, schema) in wanted.items()
    ]
    return Plan(target, tuple(wanted), key, _row_of(parts, tuple(wanted)))


def _row_of(
    parts: list[Callable[[SinkRecord, Any, Any], Any]], names: tuple[str, ...]
) -> Callable[[SinkRecord, Any, Any], Row]:
    if len(names) > 1 and all(part is _same for part in parts):
        pick = itemgetter(*names)

        def picked(_record: SinkRecord, _key: Any, value: Any) -> Row:
            try:
                row: Row = pick(value)
            except KeyError:  # an optional field that is not there
                row = tuple([value.get(name) for name in names])
            return row

        return picked
    pairs = list(zip(parts, names, strict=True))
    return lambda record, key, value: tuple(
        [value.get(name) if part is _same else part(record, key, value) for part, name in pairs]
    )


def _same(_record: SinkRecord, _key: Any, _value: Any) -> None:
    """Stands for the field as it is."""


def _part(source: str, name: str, convert: Callable[[Any], Any] | None) -> Callable[[SinkRecord, Any, Any], Any]:
    """What makes one column of a record."""
    if source in {"topic", "partition", "offset"}:
        return lambda record, _key, _value: getattr(record, source)
    if source == "value" and convert is None:
        return _same
    if source == "whole key":
        return lambda _record, key, _value: _converted(convert, key)
    if source == "key":
        return lambda _record, key, _value: _converted(convert, key.get(name))
    return lambda _record, _key, value: _converted(convert, value.get(name))


def _converted(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)
