"""A connector that was read and checked: frozen values, grouped by subject."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from compactory_connectors.connect.converters import Converter
from compactory_connectors.connect.setting import (
    at_least,
    boolean,
    member_of,
    names,
    one_of,
    option,
    percentage,
    required_text,
    switch,
    whole_number,
)
from compactory_connectors.connect.transforms import TransformSpec
from compactory_connectors.postgres.jdbc_url import Connection

from .selection import ColumnMapping, TableSelection, column_mapping, columns_mapping

__all__ = [
    "MAX_REMOVED_PERCENT",
    "ColumnOptions",
    "ColumnTypes",
    "ConnectorConfig",
    "CursorColumns",
    "ErrorPolicy",
    "Granularity",
    "Mode",
    "NumericMapping",
    "SoftDelete",
    "TopicCreation",
]

MAX_REMOVED_PERCENT = 20
"""Percent of a directory's keys that one removal may take, unless the connector says otherwise."""


class Mode(Enum):
    """``mode``: the way in which changed rows are found."""

    BULK = "bulk"
    INCREMENTING = "incrementing"
    TIMESTAMP = "timestamp"
    TIMESTAMP_INCREMENTING = "timestamp+incrementing"

    @property
    def incrementing(self) -> bool:
        """True if it needs a column that grows with every new row."""
        return self in {Mode.INCREMENTING, Mode.TIMESTAMP_INCREMENTING}

    @property
    def timestamp(self) -> bool:
        """True if it needs columns of the last change."""
        return self in {Mode.TIMESTAMP, Mode.TIMESTAMP_INCREMENTING}


class NumericMapping(Enum):
    """``numeric.mapping``: which NUMERIC columns become integers or doubles instead of Decimal."""

    NONE = "none"
    PRECISION_ONLY = "precision_only"
    BEST_FIT = "best_fit"
    BEST_FIT_EAGER_DOUBLE = "best_fit_eager_double"


class Granularity(Enum):
    """``timestamp.granularity``: what a timestamp becomes."""

    CONNECT_LOGICAL = "connect_logical"
    MICROS_LONG = "micros_long"
    MICROS_STRING = "micros_string"
    MICROS_ISO_DATETIME_STRING = "micros_iso_datetime_string"
    NANOS_LONG = "nanos_long"
    NANOS_STRING = "nanos_string"
    NANOS_ISO_DATETIME_STRING = "nanos_iso_datetime_string"


class ColumnTypes(Enum):
    """``compactory.types``: the types that the real connector supports, or all."""

    CONNECTOR = "connector"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """The options that decide how columns become values. The defaults are those of the real connector."""

    numeric_mapping: NumericMapping = NumericMapping.NONE
    granularity: Granularity = Granularity.CONNECT_LOGICAL
    zone: str = "UTC"
    """``db.timezone`` as it was written."""
    types: ColumnTypes = ColumnTypes.CONNECTOR


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """``column`` false means deleted: sent as a tombstone, or where ``tombstone`` is false as its value."""

    column: str
    tombstone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreation:
    """Partitions, replicas and configuration of a topic that the source creates. -1: the broker's default."""

    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def policy(self) -> str:
        """The cleanup policy that the connector asks for; compact unless it says otherwise."""
        return self.configs.get("cleanup.policy", "compact")


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorColumns:
    """The columns by which changed rows are found: the same for all tables, or by table."""

    incrementing: str = option(
        "column that grows with every new row; empty: one that numbers itself",
        "",
        str.strip,
        name="incrementing.column.name",
    )
    timestamps: tuple[str, ...] = option(
        "columns of the row's last change; the first that is not NULL counts", "", names, name="timestamp.column.name"
    )
    incrementing_by_table: tuple[ColumnMapping, ...] = option(
        "incrementing column by table: regex:column,…", "", column_mapping, name="incrementing.column.mapping"
    )
    timestamps_by_table: tuple[ColumnMapping, ...] = option(
        "timestamp columns by table: regex:[column|column],…", "", columns_mapping, name="timestamp.columns.mapping"
    )
    validate_non_null: bool = option("refuse nullable incrementing and timestamp columns", "true", boolean)
    initial: int | None = option(
        "milliseconds since 1970 from which on a first load takes rows; -1: now",
        None,
        whole_number,
        name="timestamp.initial",
    )
    delay_ms: int = option(
        "how long a row waits for earlier ones that commit late; only views and queries need it",
        "0",
        at_least(0),
        name="timestamp.delay.interval.ms",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """The treatment of a row that can't be converted."""

    skip: bool = option(
        "a row that can't be converted stops its table (none), or is skipped and counted (all)",
        "none",
        lambda value: one_of("none", "all")(value) == "all",
        name="errors.tolerance",
    )
    log_each: bool = option(
        "log every skipped row; else the first of a table and the count", "false", boolean, name="errors.log.enable"
    )
    name_rows: bool = option(
        "name a row that is skipped, or stops its table, by its id in the log; values never appear",
        "false",
        boolean,
        name="errors.log.include.messages",
    )


def _topic_prefix(value: str) -> str:
    text = value.strip()
    if len(text) > 249:
        raise ValueError("must be of 249 characters at the most")
    if not re.fullmatch(r"[a-zA-Z0-9._-]*", text):
        raise ValueError("must hold letters of ASCII, digits, . _ and - only")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """A connector: values of keys, then values made of several keys. Immutable; ``files.load_connectors`` makes it."""

    name: str = option(
        "name of the connector: its offsets, lease and transactional id", "the file's stem", required_text
    )
    catalog: str = option("the database, which must be that of connection.url; empty: any", "", name="catalog.pattern")
    suffix: str = option(
        "text after the generated query; rows are then found by timestamp and id", "", str.strip, name="query.suffix"
    )
    mode: Mode = option("how changed rows are found", None, member_of(Mode))
    poll_interval_ms: int = option("milliseconds between two polls of a table that changes", "5000", at_least(1))
    table_poll_interval_ms: int = option("milliseconds between two searches for tables", "60000", at_least(1))
    batch_max_rows: int = option(
        "most rows of one Kafka transaction; at most 10,000 and about 8 MiB", "10000", at_least(1)
    )
    retry_attempts: int = option(
        "number of consecutive failed polls after which a table stays FAILED; -1 or 0: no limit",
        "-1",
        at_least(0, also=-1),
        name="query.retry.attempts",
    )
    bulk_deletes: bool = option(
        "mode bulk: on removes keys that the table lacks from the topic after each poll",
        "off",
        switch,
        name="compactory.bulk.deletes",
    )
    sweep_interval_ms: int = option(
        "milliseconds between two sweeps, which remove keys of deleted rows; 0: off",
        "0",
        at_least(0),
        name="compactory.sweep.interval.ms",
    )
    max_removed_percent: int = option(
        "a removal of more of a directory's keys waits for compactory source approve; 100: no removal waits",
        str(MAX_REMOVED_PERCENT),
        percentage,
        name="compactory.max.removed.percent",
    )
    max_changed_percent: int = option(
        "a poll that changes the values of more of a directory's keys waits for compactory source approve, except in"
        " a first load; 100: no poll waits",
        "100",
        percentage,
        name="compactory.max.changed.percent",
    )
    heartbeat_interval_ms: int = option(
        "milliseconds between two heartbeats (table compactory.heartbeats, topic compactory-heartbeats); 0: none",
        "0",
        at_least(1000, also=0),
        name="compactory.heartbeat.interval.ms",
    )
    topic_prefix: str = option("the topic of a table is this and the table's name", None, _topic_prefix)
    create_topics: bool = option("create topics that are missing", "true", boolean, name="topic.creation.enable")
    transactions: bool = option(
        "records and offset in one Kafka transaction; `off`: see below", "on", switch, name="compactory.transactions"
    )
    connection: Connection
    selection: TableSelection
    query: str | None = field(repr=False)
    masked: bool
    """The query must not be shown: it was given as ``query.masked``, or a placeholder in it may stand for a secret."""
    cursor: CursorColumns
    columns: ColumnOptions
    key_converter: Converter
    value_converter: Converter
    transforms: tuple[TransformSpec, ...]
    errors: ErrorPolicy
    topics: TopicCreation
    producer: Mapping[str, str] = field(repr=False)
    """Properties of the producer by librdkafka's names; may hold credentials."""
    soft_delete: SoftDelete | None
    notes: tuple[str, ...]
    """Keys that were given and have no effect here, each with the reason."""

    def topic(self, table: str) -> str:
        """Return the topic of a table, before transforms: ``<topic.prefix><table>``, without the table's schema.

        Of a query the prefix is the whole name.
        """
        return self.topic_prefix if self.query is not None else f"{self.topic_prefix}{table}"
