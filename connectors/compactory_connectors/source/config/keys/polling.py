"""Keys that say how changed rows are found, and when."""

from __future__ import annotations

from ...setting import (
    Setting,
    at_least,
    boolean,
    honoured,
    member_of,
    moot,
    names,
    one_of,
    percentage,
    required_text,
    switch,
    whole_number,
)
from ..connector_config import MAX_REMOVED_PERCENT, Mode

__all__ = ["KEYS"]

KEYS: tuple[Setting, ...] = (
    honoured(
        "mode",
        "how changed rows are found",
        None,
        member_of(Mode),
    ),
    honoured("incrementing.column.name", "column that grows with every new row; empty: one that numbers itself", ""),
    honoured(
        "timestamp.column.name", "columns of the row's last change; the first that is not NULL counts", None, names
    ),
    honoured(
        "timestamp.initial",
        "milliseconds since 1970 from which on a first load takes rows; -1: now",
        None,
        whole_number,
    ),
    honoured(
        "timestamp.delay.interval.ms",
        "how long a row waits for earlier ones that commit late; only views and queries need it",
        "0",
        at_least(0),
    ),
    honoured("validate.non.null", "refuse nullable incrementing and timestamp columns", "true", boolean),
    honoured("poll.interval.ms", "milliseconds between two polls of a table that changes", "5000", at_least(1)),
    moot("poll.linger.ms", "how long an empty poll waits", "an empty poll sends nothing", at_least(0)),
    honoured(
        "batch.max.rows", "most rows of one Kafka transaction; 10,000 and about 8 MiB at the most", "10000", at_least(1)
    ),
    moot("max.buffer.size", "rows held in memory", "batch.max.rows and 8 MiB a page bound them", at_least(0)),
    honoured(
        "query.retry.attempts",
        "failed polls of a table in a row after which it stays FAILED; -1 or 0: tried for ever",
        "-1",
        at_least(0, also=-1),
    ),
    honoured(
        "compactory.bulk.deletes",
        "mode bulk: on removes keys from the topic, after each poll, that the table has not",
        "off",
        switch,
    ),
    honoured(
        "compactory.sweep.interval.ms",
        "milliseconds between two sweeps for keys of rows that were deleted unseen; 0: off",
        "0",
        at_least(0),
    ),
    honoured(
        "compactory.max.removed.percent",
        "a removal of more of a directory's keys waits for compactory source approve; 100: none does",
        str(MAX_REMOVED_PERCENT),
        percentage,
    ),
    honoured(
        "compactory.heartbeat.interval.ms",
        "milliseconds between two heartbeats (table compactory.heartbeats, topic compactory-heartbeats); 0: none",
        "0",
        at_least(1000, also=0),
    ),
    honoured(
        "compactory.soft.delete.column", "boolean column; a row in which it is false is deleted", None, required_text
    ),
    honoured(
        "compactory.soft.delete.mode",
        "a deleted row is sent as a tombstone, or as its value",
        "tombstone",
        one_of("tombstone", "value"),
    ),
)
