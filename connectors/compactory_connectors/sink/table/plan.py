"""How records of one shape become rows of one table: which field goes to which column, and as what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    given = [
        (source, name, adapter(schema, target.columns[column])) for column, (source, name, schema) in wanted.items()
    ]
    fields = [(name, convert) for source, name, convert in given if source == "value"]
    others = [(source, name, convert) for source, name, convert in given if source != "value"]
    return Plan(target, tuple(wanted), key, _row_of(others, fields))


_Convert = Callable[[Any], Any] | None


def _row_of(
    others: list[tuple[str, str, _Convert]], fields: list[tuple[str, _Convert]]
) -> Callable[[SinkRecord, Any, Any], Row]:
    """One function for the fields of the value, which nearly all columns are."""

    def row(record: SinkRecord, key: Any, value: Any) -> Row:
        return (
            *[_other(source, name, convert, record, key) for source, name, convert in others],
            *[
                found if (found := value.get(name)) is None or convert is None else convert(found)
                for name, convert in fields
            ],
        )

    return row


def _other(source: str, name: str, convert: _Convert, record: SinkRecord, key: Any) -> Any:
    if source in {"topic", "partition", "offset"}:
        return getattr(record, source)
    found = key if source == "whole key" else key.get(name)
    return found if found is None or convert is None else convert(found)
