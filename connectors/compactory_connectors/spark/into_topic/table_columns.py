"""The table that a connector's records are made of: as its database describes it, or as a load's rules do. Pure but for
asking the database.

Whether a column may be null shows in records with a schema; what else rules lack changes no byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from compactory.errors import ConfigError, Unreachable
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.converters.primitive_converters import PrimitiveConverter
from compactory_connectors.connect.converters.string_converter import StringConverter
from compactory_connectors.connect.setting import nearest
from compactory_connectors.postgres.postgres_errors import postgres_errors
from compactory_connectors.source.config.connector import ConnectorConfig
from compactory_connectors.source.config.selection import RelationKind
from compactory_connectors.source.mapping.row_plan import compile_plan
from compactory_connectors.source.planning.planner import find_plans
from compactory_connectors.source.postgres.catalog import Column, Table
from compactory_connectors.source.postgres.server import Server

from ..column_types import INTERNAL, ColumnType, parse_type

__all__ = ["described", "type_of", "unwritable"]

log = structlog.get_logger("compactory.spark")

_NAMES: Final = {name: internal for internal, name in INTERNAL.items()}
_LENGTHS: Final = {"varchar", "bpchar"}
_FRACTIONS: Final = {"timestamp", "timestamptz", "time"}
_WRITTEN: Final = {
    *("text", "character varying", "character", "name", "xml", "json", "jsonb", "numeric"),
    *("uuid", "time without time zone", "oid"),
}
"""Types that Spark holds in strings, and that Postgres spells in a way that is known here."""
_HEADER: Final = 4
"""Bytes that a typmod of old counts with."""


def described(connector: ConnectorConfig, topic: str, types: Mapping[str, str]) -> tuple[Table, bytes | None]:
    """The table whose records go to ``topic``, and the key of its offset.

    While Postgres is away the table has the columns of ``types``, and the key is None.

    Raises ConfigError where there is none, or where several share the topic.
    """
    try:
        with postgres_errors(connector.connection):
            server = Server.open(connector.connection.conninfo)
            try:
                return _of_database(server, connector, topic)
            finally:
                server.close()
    except Unreachable as error:
        if not types:
            raise
        log.warning("columns are those of the rules: the database does not answer", error=str(error))
    return _of_rules(connector, topic, types), None


def type_of(column: Column) -> ColumnType:
    """Its type as SQL spells it, a domain as its base type."""
    if column.type_schema != "pg_catalog" or column.type_kind != "b" or column.type.startswith("_"):
        return parse_type(column.declared or column.type)
    if column.type == "bpchar" and column.typmod == -1:
        return parse_type("text")
    return parse_type(f"{column.type}{_modifiers(column)}" if column.type != "char" else '"char"')


def unwritable(kind: ColumnType, type_kind: str = "b") -> str | None:
    """Why values of the type can't be written without Postgres, or None. ``type_kind`` is ``pg_type.typtype``."""
    if type_kind == "e" or kind.spark != "string" or kind.name in _WRITTEN:
        return None
    return f"only Postgres itself knows how it spells values of type {kind}"


def _modifiers(column: Column) -> str:
    if column.typmod < 0:
        return ""
    if column.type == "numeric":
        digits, scale = column.typmod - _HEADER >> 16, (column.typmod - _HEADER) & 0x7FF
        return f"({digits & 0xFFFF},{(scale ^ 1024) - 1024})"
    if column.type in _LENGTHS:
        return f"({column.typmod - _HEADER})"
    return f"({column.typmod})" if column.type in _FRACTIONS else ""


def _of_database(server: Server, connector: ConnectorConfig, topic: str) -> tuple[Table, bytes | None]:
    plans = find_plans(server, connector)  # faults of other tables do not matter here
    found = [plan for plan in plans.plans if topic in plan.rows.topics]
    if not found:
        there = [name for plan in plans.plans for name in plan.rows.topics]
        raise ConfigError(
            plans.all_problems
            or f"connector {connector.name!r} has no table whose records go to topic {topic!r}{nearest(topic, there)}"
        )
    if len(found) > 1:
        names = ", ".join(plan.qualified for plan in found)
        raise ConfigError(f"topic {topic!r} has records of {names}: a key does not tell its table; nothing is loaded")
    return found[0].rows.table, found[0].offset_key(server.database)


def _of_rules(connector: ConnectorConfig, topic: str, types: Mapping[str, str]) -> Table:
    converters = (connector.key_converter, connector.value_converter)
    if any(_writes_schemas(converter) for converter in converters):
        raise ConfigError(
            f"Postgres at {connector.connection.server} does not answer, and only it knows which columns may be null,"
            " which the schemas of this connector's records say; run this again when it is back"
        )
    kinds = {name: parse_type(written) for name, written in types.items()}
    unknown = [f"column {name}: {why}" for name, kind in kinds.items() if (why := unwritable(kind)) is not None]
    if unknown:
        raise ConfigError(f"{problem}, and it does not answer" for problem in unknown)
    columns = tuple(_column(name, kind) for name, kind in kinds.items())
    for name in _candidates(connector, topic):
        table = _table(name, columns)
        if topic in compile_plan(connector, table).topics:
            return table
    raise ConfigError(f"connector {connector.name!r}: which of its tables goes to topic {topic!r}, only Postgres knows")


def _table(name: str, columns: tuple[Column, ...]) -> Table:
    kind = RelationKind.TABLE if name else RelationKind.QUERY
    return Table(schema="", name=name, oid=0, kind=kind, columns=columns, primary_key=())


def _candidates(connector: ConnectorConfig, topic: str) -> Iterator[str]:
    if connector.query is not None:
        yield ""
        return
    yield from (table.name for table in connector.selection.listed)
    yield topic.removeprefix(connector.topic_prefix)


def _column(name: str, kind: ColumnType) -> Column:
    base = _NAMES.get(kind.name, kind.name)
    typmod = -1
    if kind.name == "numeric" and kind.modifiers:
        digits, scale = (*kind.modifiers, 0)[:2]
        typmod = (digits << 16 | scale & 0x7FF) + _HEADER
    elif kind.modifiers:
        typmod = kind.modifiers[0] + (_HEADER if base in _LENGTHS else 0)
    elif base == "bpchar":
        typmod = 1 + _HEADER
    return Column(name=name, type=base, typmod=typmod, declared=str(kind))


def _writes_schemas(converter: object) -> bool:
    if isinstance(converter, JsonConverter):
        return converter.schemas_enable
    return not isinstance(converter, StringConverter | PrimitiveConverter)
