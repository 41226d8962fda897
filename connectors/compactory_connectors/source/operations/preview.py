"""Previews of a connector: the plan of every table with its first records; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from psycopg import sql

from compactory.errors import CompactoryError, ConfigError
from compactory_connectors.connect.record.record import RowFailed
from compactory_connectors.kafka.producer_record import ProducerRecord

from ..config.connector import ConnectorConfig
from ..planning.planner import find_plans
from ..planning.table_plan import Reading, TablePlan
from ..polling.table_reader import open_reader
from ..postgres.server import Server, connected, statement

__all__ = ["ColumnPreview", "ConnectorPreview", "TablePreview", "preview", "preview_connector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPreview:
    """A column of a table. ``used``: the records have it."""

    name: str
    type: str
    nullable: bool
    used: bool
    in_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreview:
    """The plan of one table. ``records`` are its first records; ``sql`` is the query of a poll."""

    table: str
    kind: str
    topic: str
    mode: str
    cursor: tuple[str, ...]
    """The columns by which rows are found and ordered."""
    rows_found_by: str
    """How new rows are found, in words."""
    misses_late_commits: bool
    """True if a change can be missed that commits late (guarantee 8 does not hold)."""
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    schema: tuple[ColumnPreview, ...]
    adopted: bool
    notifies: bool
    rows: int
    """Counted for a small table, the planner's estimate for a large one."""
    records: tuple[ProducerRecord, ...]
    skipped: tuple[str, ...]
    """The first rows that can't be converted, each with the reason, if the connector tolerates them."""
    sql: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPreview:
    """The previews of a connector. ``notes`` are keys without effect, each with the reason."""

    tables: tuple[TablePreview, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def preview(connector: ConnectorConfig, *, limit: int = 5) -> list[TablePreview]:
    """Return every table's plan with its first ``limit`` records. Connects to Postgres, not to Kafka.

    Raises ConfigError with all problems, Unreachable, and CompactoryError for a row that can't be converted.
    """
    return list(preview_connector(connector, limit=limit).tables)


def preview_connector(connector: ConnectorConfig, *, limit: int = 5) -> ConnectorPreview:
    """Return the tables' previews with notes and warnings about the connector as a whole. See :func:`preview`."""
    key, value = connector.key_converter.dry(), connector.value_converter.dry()
    connector = replace(connector, key_converter=key, value_converter=value)
    with connected(connector.connection) as server:
        discovered = find_plans(server, connector)
        if discovered.all_problems:
            raise ConfigError(discovered.all_problems)
        warnings = discovered.warnings
        if not discovered.plans:
            warnings = (*warnings, connector.selection.nothing(connector.connection.server))
        tables = tuple(_preview(server, connector, plan, limit) for plan in discovered.plans)
    return ConnectorPreview(tables=tables, notes=connector.notes, warnings=warnings)


def _preview(server: Server, connector: ConnectorConfig, plan: TablePlan, limit: int) -> TablePreview:
    reader = open_reader(server, plan, None)
    pages = reader.batches(max(limit, 1))
    try:
        first = next(pages)
    except RowFailed as error:
        raise CompactoryError(f"{plan.label}: {error}") from error
    finally:
        pages.close()
    return TablePreview(
        table=plan.qualified,
        kind=plan.kind.label,
        topic=plan.topic,
        mode=connector.mode.value,
        cursor=() if plan.reading is Reading.WHOLE else plan.order,
        rows_found_by=plan.reading.value,
        misses_late_commits=not plan.reading.covered,
        columns=tuple(plan.rows.columns),
        key_columns=tuple(plan.rows.key_columns),
        schema=tuple(_columns(plan)),
        adopted=plan.adopted,
        notifies=plan.notifies,
        rows=int(server.scalar(statement("source/count", table=plan.relation(), oid=sql.Literal(plan.oid)))),
        records=tuple(first.records[:limit]),
        skipped=tuple(map(str, first.skipped[:limit])),
        sql="masked" if connector.masked else reader.query_text(),
        warnings=(*plan.warnings, *plan.load_warnings),
    )


def _columns(plan: TablePlan) -> Iterator[ColumnPreview]:
    for column in plan.rows.table.columns:
        yield ColumnPreview(
            name=column.name,
            type=column.declared or column.type,
            nullable=not column.not_null,
            used=column.name in plan.rows.columns,
            in_key=column.name in plan.rows.key_columns,
        )
