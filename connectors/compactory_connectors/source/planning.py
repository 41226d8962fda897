"""From a connector and the server's catalogue to the plans of its tables; problems are found before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from compactory.errors import ConfigError
from compactory_connectors.database import Inspection, inspect

from .catalog import Table, describe_tables
from .chain import RowPlan, compile_plan
from .connector import ConnectorConfig
from .rights import read_rights
from .server import Server
from .table_plan import TablePlan

__all__ = ["plan_tables"]


def plan_tables(server: Server, connector: ConnectorConfig) -> list[TablePlan]:
    """A plan per table, in the connector's order. Raises ConfigError with all problems, and psycopg.Error."""
    with server.connection.transaction():  # what is found and its digest are of one snapshot
        server.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _plans(server, connector)


def _plans(server: Server, connector: ConnectorConfig) -> list[TablePlan]:
    plans: list[TablePlan] = []
    problems: list[str] = []
    for table in describe_tables(server.connection, connector):
        try:
            rows = compile_plan(connector, table)
        except ConfigError as error:
            problems += error.problems
            continue
        problems += _unfit(rows)
        rights = read_rights(server.connection, table.oid)
        if lacking := list(rights.lacking()):
            problems += lacking
            continue
        found = inspect(server.connection, table.oid)
        problems += rights.lacking_log() if found.adopted else ()
        plan = _plan(connector, table, rows, found, server.shape(table.oid))
        plans.append(replace(plan, warnings=(*plan.warnings, *rights.narrowed(), *_warnings(found))))
    if problems:
        raise ConfigError(problems)
    return plans


def _plan(connector: ConnectorConfig, table: Table, rows: RowPlan, found: Inspection, shape: str) -> TablePlan:
    declared = {column.name: column.declared for column in table.columns}
    delete = connector.soft_delete
    return TablePlan(
        schema=table.schema,
        name=table.name,
        oid=table.oid,
        topic=rows.topic,
        rows=rows,
        timestamps=connector.timestamp_columns,
        incrementing=connector.incrementing_column,
        key_types=tuple(declared[name] for name in rows.key_columns),
        shape=shape,
        soft_delete=delete.column if delete else None,
        tombstones=delete.tombstone if delete else True,
        adopted=found.adopted,
        notifies=found.adopted and found.notify,
        warnings=rows.warnings,
    )


def _warnings(found: Inspection) -> Iterator[str]:
    for problem in found.problems:
        yield f"table {found.table}: {problem}" + (f"; remedy: {found.remedy}" if found.remedy else "")


def _unfit(rows: RowPlan) -> Iterator[str]:
    if not rows.key_columns:
        yield (
            f"table {rows.table}: records have no key, which a compacted topic refuses; add the transforms"
            " org.apache.kafka.connect.transforms.ValueToKey and ExtractField$Key"
        )
