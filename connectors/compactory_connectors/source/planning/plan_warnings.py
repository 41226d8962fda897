"""Warnings about a plan: what works, and will surprise or hurt somebody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.connect.record.schema import DECIMAL, Schema
from compactory_connectors.schema import Inspection
from compactory_sql.indexes import active_predicates

from ..config.connector import ConnectorConfig, SoftDelete
from ..config.selection import Relation
from ..mapping.row_plan import RowPlan, value_schema
from ..postgres.catalog import Index, Table
from ..postgres.server import Server, statement
from .row_order import row_timestamp, timestamp_text
from .table_plan import Reading, TablePlan

__all__ = ["adoption_warnings", "future_warnings", "plan_warnings", "set_warnings"]


def plan_warnings(connector: ConnectorConfig, table: Table, rows: RowPlan) -> Iterator[str]:
    """Yield doubts about keys, numbers, changes and the topic of a table's records."""
    yield from _key_warnings(connector, table, rows)
    yield from _base64(connector, table)
    if connector.topics.policy != "compact":
        yield f"topic {rows.topic}: cleanup.policy is not compact, as topic.creation says: it is no directory"
    if connector.max_changed_percent < 100 and (rows.routed or not rows.key_columns):
        yield (
            f"table {table}: compactory.max.changed.percent has no effect: its records have no key, or transforms"
            " choose the topic of each"
        )


def future_warnings(server: Server, plan: TablePlan) -> Iterator[str]:
    """Yield a warning if rows wait because their local timestamps are later than the clock in ``db.timezone``.

    Only relations without row versions leave such rows out. One statement, which may read the whole relation.
    """
    timestamp = row_timestamp(plan)
    if plan.reading is not Reading.CURSOR or timestamp is None or plan.zoned:
        return
    clock = timestamp_text(plan, int(server.scalar(statement("source/now_ms"))))
    query = statement("source/any_later", relation=plan.relation(), timestamp=timestamp, clock=sql.Literal(clock))
    with suppress(psycopg.Error), server.connection.transaction():  # a poll raises the same error
        if server.scalar(query):
            yield (
                f"{plan.label}: rows have a {' or '.join(plan.timestamps)} in the future, by the clock of zone"
                f" {plan.connector.columns.zone}, and are sent only at that time; if the column has local times, set"
                " db.timezone to their zone"
            )


def _base64(connector: ConnectorConfig, table: Table) -> Iterator[str]:
    """Yield a warning of numbers that readers find as base64 of their bytes, unless they know the schema."""
    converter, schema = connector.value_converter, value_schema(connector, table)
    if schema is None or not isinstance(converter, JsonConverter) or converter.numeric:
        return
    if names := ", ".join(_decimals(schema)):
        subject = f"table {table}" if table.name else "query"
        yield (
            f"{subject}: {names}: numbers go out as base64 of their bytes, which a reader may take for text or for"
            " another number; to have them written as numbers set value.converter.decimal.format=NUMERIC"
        )


def _decimals(schema: Schema) -> Iterator[str]:
    """Yield the fields that have a Decimal somewhere within."""
    for field in schema.fields:
        if field.schema.name == DECIMAL or any(_decimals(field.schema)):
            yield field.name


def _key_warnings(connector: ConnectorConfig, table: Table, rows: RowPlan) -> Iterator[str]:
    """Yield doubts about a key: rows that share one overwrite each other in the topic."""
    if table.kind.is_table and not table.primary_key:
        yield f"table {table}: has no primary key"
    if not table.kind.can_have_indexes or not rows.key_columns:
        return
    key = set(rows.key_columns)
    unique = [index for index in table.indexes if index.unique and set(index.columns) <= key]
    if (set(table.primary_key) <= key and table.primary_key) or any(index.predicate is None for index in unique):
        return
    columns = ", ".join(rows.key_columns)
    active = next(filter(None, (_active_column(table, index) for index in unique)), None)
    if active is None:
        yield (
            f"table {table}: the key's columns ({columns}) are not unique by any index; rows that share a key overwrite"
            " each other in the topic"
        )
    elif connector.soft_delete != SoftDelete(active, tombstone=True):  # no tombstone removes a living row's record
        yield (
            f"table {table}: the key's columns ({columns}) are unique among rows where {active} is not false; an"
            f" inactive row may overwrite the active one in the topic: set compactory.soft.delete.column={active}, with"
            " compactory.soft.delete.mode=tombstone"
        )


def _active_column(table: Table, index: Index) -> str | None:
    """Return the column of whose rows the index holds all that are not false."""
    for column in table.columns:
        names = (column.name, '"' + column.name.replace('"', '""') + '"')  # the server quotes as needed
        if any(index.predicate in active_predicates(name, not_null=column.not_null) for name in names):
            return column.name
    return None


def adoption_warnings(inspection: Inspection | None) -> Iterator[str]:
    """Yield what is wrong with the adoption of a table, each with the remedy."""
    if inspection is not None:
        remedy = f"; remedy: {inspection.remedy}" if inspection.remedy else ""
        yield from (f"table {inspection.table}: {problem}{remedy}" for problem in inspection.problems)


def set_warnings(chosen: Sequence[Relation], plans: Sequence[TablePlan]) -> Iterator[str]:
    """Yield doubts about the set of a connector's tables."""
    if partitions := [str(relation) for relation in chosen if relation.partition]:
        yield (
            f"{', '.join(partitions)}: partitions are polled as tables, each with a topic of its own; to poll the"
            " whole, set table.types=PARTITIONED TABLE"
        )
    tables_by_topic: dict[str, list[str]] = {}
    for plan in plans:
        if not plan.rows.publishes:
            yield f"table {plan.qualified}: a Filter of the transforms drops every row, so it is not polled"
        elif not plan.keyless:
            for topic in plan.rows.topics:
                tables_by_topic.setdefault(topic, []).append(plan.qualified)
    for topic, tables in tables_by_topic.items():
        if len(tables) > 1:
            yield (
                f"topic {topic}: is that of {' and '.join(tables)}: rows of them that have a key in common overwrite"
                " each other, and removals of its keys are held"
            )
