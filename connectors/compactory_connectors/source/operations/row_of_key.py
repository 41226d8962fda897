"""The rows of one record key, as a poll would send them now, for people who look at an entry."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.connector import ConnectorConfig
from ..planning.planner import plan_tables
from ..planning.table_plan import TablePlan
from ..postgres.server import Server, connected
from ..verify.checker import Row
from ..verify.table_side import table_snapshot

__all__ = ["RowRecord", "rows_of_key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRecord:
    """The record that a row makes. ``value`` None: a tombstone, or ``problem`` says why the value is not known."""

    table: str
    value: bytes | None
    problem: str | None = None


def rows_of_key(connector: ConnectorConfig, topic: str, key: bytes) -> list[RowRecord]:
    """Return the record of each row that has this record key in the topic. Reads Postgres only.

    Raises ConfigError with all problems, Unreachable, TableReplaced, and CompactoryError for a refused statement.
    """
    with connected(connector.connection) as server:
        plans = [plan for plan in plan_tables(server, connector) if topic in plan.rows.topics]
        return [record for plan in plans for record in _records(server, plan, topic, key)]


def _records(server: Server, plan: TablePlan, topic: str, key: bytes) -> list[RowRecord]:
    is_utf8 = server.connection.info.parameter_status("server_encoding") == "UTF8"
    parts = plan.rows.key_parts(key) if plan.rows.key_columns and is_utf8 else None
    if parts is None:
        problem = "a record key does not tell its row; compare the topic with its table instead"
        return [RowRecord(table=plan.qualified, value=None, problem=problem)]
    with table_snapshot(server, plan, None) as snapshot:
        rows = [row for page in snapshot.rows(topic, [parts]) for row in page if row[0] == key]
    problem = "the row can't be converted"
    return [
        RowRecord(table=plan.qualified, value=value, problem=problem if flags & Row.UNREADABLE else None)
        for _, value, flags, _ in rows
    ]
