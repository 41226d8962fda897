"""The order of emission of a table and cursors in it, as SQL: by timestamp, by id, by both. Pure: runs nothing.

The cursor is that of the real connector, and so are the conditions (``TimestampIncrementingCriteria``), with one
difference: without a cursor there is no lower bound, while the real one begins at 1970 and id 0 and never sends earlier
rows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from psycopg import sql

from compactory_connectors.connect.javatext.java_zone import zone_info

from ..offsets.offset_parts import Cursor
from .table_plan import TablePlan

__all__ = [
    "after_cursor",
    "after_initial",
    "before_limit",
    "format_timestamp",
    "order_columns",
    "parse_timestamp",
    "read_limit",
    "row_timestamp",
    "timestamp_text",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row_timestamp(plan: TablePlan) -> sql.Composable | None:
    """Return the timestamp of a row: the first of the columns that is not NULL; None where the mode has none."""
    names = [sql.Identifier("t", name) for name in plan.timestamps]
    if not names:
        return None
    return names[0] if len(names) == 1 else sql.SQL("COALESCE({})").format(sql.SQL(", ").join(names))


def order_columns(plan: TablePlan, *, total: bool = True) -> list[sql.Composable]:
    """Return the order of rows: timestamp, id, then for a ``total`` order columns that set rows of one cursor apart."""
    timestamp = row_timestamp(plan)
    columns: list[sql.Composable] = [] if timestamp is None else [timestamp]
    if plan.incrementing:
        columns.append(sql.Identifier("t", plan.incrementing))
    columns += [sql.Identifier("t", name) for name in plan.tie_breakers if name != plan.incrementing]
    if plan.tie_breakers or plan.incrementing or not total:
        return columns
    return [*columns, sql.SQL('t::text COLLATE "C"')]  # rows that are alike make records that are alike


def after_cursor(plan: TablePlan, cursor: Cursor, initial: str | None = None) -> sql.Composable:
    """Return the condition of rows after a cursor, as the mode has it; without its timestamp, after ``initial``."""
    if cursor.timestamp is None:
        return _after(plan, initial, cursor.incrementing)
    return _after(plan, timestamp_text(plan, cursor.timestamp, cursor.timestamp_nanos), cursor.incrementing)


def _after(plan: TablePlan, timestamp: str | None, number: int | None) -> sql.Composable:
    """Return the condition of rows after a timestamp and an id; None is no bound."""
    column = row_timestamp(plan)
    identifier = sql.Identifier("t", plan.incrementing) if plan.incrementing else None
    if column is None:
        if identifier is None:
            return sql.SQL("true")
        if number is None:
            return sql.SQL("{} IS NOT NULL").format(identifier)
        return sql.SQL("{} > {}").format(identifier, sql.Literal(number))
    if timestamp is None:
        return sql.SQL("{} IS NOT NULL").format(column)
    later = sql.SQL("{} > {}").format(column, sql.Literal(timestamp))
    if identifier is None:
        return later
    same_time = sql.SQL("{} = {} AND {} > {}").format(
        column, sql.Literal(timestamp), identifier, sql.Literal(-1 if number is None else number)
    )
    return sql.SQL("({} OR {})").format(same_time, later)


def after_initial(plan: TablePlan, initial: str | None) -> sql.Composable | None:
    """Return the bound that ``timestamp.initial`` sets on a first load; None without one."""
    return _after(plan, initial, None) if initial is not None and plan.timestamps else None


def before_limit(plan: TablePlan, limit: str) -> sql.Composable | None:
    """Return the condition of rows before the limit of :func:`read_limit`; None where the mode has no timestamp."""
    column = row_timestamp(plan)
    return None if column is None else sql.SQL("{} < {}").format(column, sql.Literal(limit))


def read_limit(plan: TablePlan, now_ms: int) -> str:
    """Return the timestamp before which rows may be read at this time of the server's clock."""
    return timestamp_text(plan, now_ms - plan.connector.cursor.delay_ms)


def timestamp_text(plan: TablePlan, milliseconds: int, nanos: int | None = None) -> str:
    """Return a time as a text to compare the table's timestamps with."""
    return format_timestamp(milliseconds, nanos, None if plan.zoned else plan.connector.columns.zone)


def parse_timestamp(text: str, zone: str = "UTC") -> tuple[int, int]:
    """Return epoch milliseconds, and nanoseconds within the second, of a timestamp in Postgres' ISO text.

    ``zone`` is that of local times; a text with an offset needs none. Returns (0, 0) for what Python's calendar does
    not hold: infinity, BC, five-digit years.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return 0, 0
    if time.tzinfo is None:
        time = time.replace(tzinfo=zone_info(zone))
    seconds, micros = divmod((time - _EPOCH) // timedelta(microseconds=1), 1_000_000)
    return seconds * 1000 + micros // 1000, micros * 1000


def format_timestamp(milliseconds: int, nanos: int | None = None, zone: str | None = "UTC") -> str:
    """Return the reverse of :func:`parse_timestamp`: local time of ``zone``, or with None a time with its offset."""
    micros = (milliseconds % 1000) * 1000 if nanos is None else nanos // 1000
    time = _EPOCH + timedelta(seconds=milliseconds // 1000, microseconds=micros)
    if zone is not None:
        time = time.astimezone(zone_info(zone)).replace(tzinfo=None)
    return time.isoformat(sep=" ", timespec="microseconds")
