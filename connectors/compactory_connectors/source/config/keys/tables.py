"""Keys that say which tables are polled, or which query."""

from __future__ import annotations

from ...setting import Setting, at_least, honoured, moot, names, text
from ..selection import column_mapping, columns_mapping, patterns, table_types

__all__ = ["KEYS"]

KEYS: tuple[Setting, ...] = (
    honoured("table.whitelist", "tables to poll, [schema.]table, separated by commas", None, names),
    honoured("table.blacklist", "tables not to poll, of all that there are", None, names),
    honoured("table.include.list", "regular expressions of schema.table to poll", None, patterns),
    honoured("table.exclude.list", "regular expressions of included tables not to poll", None, patterns),
    honoured("schema.pattern", "schemas to look in, with the wildcards % and _ of LIKE; empty: all", None, text),
    honoured("catalog.pattern", "the database, which must be that of connection.url", None, text),
    honoured(
        "table.types",
        "kinds of relation to poll: TABLE, PARTITIONED TABLE, VIEW, MATERIALIZED VIEW, FOREIGN TABLE",
        "TABLE",
        table_types,
    ),
    honoured("table.poll.interval.ms", "milliseconds between two looks for tables", "60000", at_least(1)),
    moot(
        "table.monitoring.startup.polling.limit.ms",
        "how long to wait for the list of tables",
        "the source begins with the list",
        at_least(0),
    ),
    honoured("query", "a SELECT in place of tables; the topic is topic.prefix alone", None, text),
    honoured("query.masked", "the same, never shown by validate", None, text, secret=True),
    honoured("query.suffix", "text behind the generated query; rows are found by their place then", "", text),
    honoured(
        "incrementing.column.mapping",
        "incrementing column by table: regex:column,…",
        None,
        column_mapping,
    ),
    honoured(
        "timestamp.columns.mapping",
        "timestamp columns by table: regex:[column|column],…",
        None,
        columns_mapping,
    ),
)
