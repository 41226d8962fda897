"""What a source would do, table by table, without writing anything: for ``--dry-run`` and ``validate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import sql

from compactory.errors import CompactoryError

from .connector import ConnectorConfig
from .planning import plan_tables
from .record import RowError
from .server import Server, postgres_errors, statement
from .table import Record, TableReader
from .table_plan import TablePlan

__all__ = ["TablePreview", "preview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreview:
    """One table as the source understands it. ``records`` are its first ones; ``sql`` is the query of a poll."""

    table: str
    topic: str
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    adopted: bool
    notifies: bool
    rows: int
    records: tuple[Record, ...]
    sql: str
    warnings: tuple[str, ...]


def preview(connector: ConnectorConfig, *, limit: int = 5) -> list[TablePreview]:
    """Connect to Postgres (not to Kafka) and show every table's plan with its first ``limit`` records.

    Raises ConfigError with all problems, Unreachable, and CompactoryError for a row that can't be converted.
    """
    with postgres_errors(connector.connection):
        server = Server.open(connector.connection.conninfo)
        try:
            return [_preview(server, plan, limit) for plan in plan_tables(server, connector)]
        finally:
            server.close()


def _preview(server: Server, plan: TablePlan, limit: int) -> TablePreview:
    reader = TableReader(server, plan, None)
    pages = reader.pages(max(limit, 1))
    try:
        records = next(pages).records[:limit]
    except RowError as error:
        raise CompactoryError(f"table {plan.qualified}: {error}") from error
    finally:
        pages.close()
    return TablePreview(
        table=plan.qualified,
        topic=plan.topic,
        columns=tuple(plan.rows.columns),
        key_columns=tuple(plan.rows.key_columns),
        adopted=plan.adopted,
        notifies=plan.notifies,
        rows=_estimate(server, plan),
        records=tuple(records),
        sql=reader.query_text(),
        warnings=plan.warnings,
    )


def _estimate(server: Server, plan: TablePlan) -> int:
    """The number of rows: counted for a small table, the planner's estimate for a large one."""
    query = statement("source/count", table=sql.Identifier(plan.schema, plan.name), oid=sql.Literal(plan.oid))
    rows: Any = server.scalar(query)
    return int(rows)
