"""A connector that was read and checked: frozen values, grouped by subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from compactory_connectors.database.jdbc_url import Connection

from ..record.column import ColumnOptions
from ..record.converters import ConverterSpec, simple_headers
from ..record.transforms import TransformSpec
from .selection import ColumnMapping, TableSelection
from .topic_rules import TopicRules

__all__ = ["MAX_REMOVED_PERCENT", "ConnectorConfig", "CursorColumns", "ErrorPolicy", "Mode", "SoftDelete"]

MAX_REMOVED_PERCENT = 20
"""Percent of a directory's keys that one removal may take, unless the connector says otherwise."""


class Mode(Enum):
    """How changed rows are found."""

    BULK = "bulk"
    INCREMENTING = "incrementing"
    TIMESTAMP = "timestamp"
    TIMESTAMP_INCREMENTING = "timestamp+incrementing"

    @property
    def incrementing(self) -> bool:
        """Whether it needs a column that grows with every new row."""
        return self in {Mode.INCREMENTING, Mode.TIMESTAMP_INCREMENTING}

    @property
    def timestamp(self) -> bool:
        """Whether it needs columns of the last change."""
        return self in {Mode.TIMESTAMP, Mode.TIMESTAMP_INCREMENTING}


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """``column`` false means deleted: sent as a tombstone, or where ``tombstone`` is false as its value."""

    column: str
    tombstone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorColumns:
    """The columns by which changed rows are found: the same for all tables, or by table."""

    incrementing: str = ""
    """Empty: the column that numbers itself."""
    timestamps: tuple[str, ...] = ()
    incrementing_by_table: tuple[ColumnMapping, ...] = ()
    timestamps_by_table: tuple[ColumnMapping, ...] = ()
    validate_non_null: bool = True
    initial: int | None = None
    """``timestamp.initial`` in milliseconds since 1970; -1: now."""
    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """A row that can't be converted stops its table; with ``skip`` it is left out and counted."""

    skip: bool = False
    log_each: bool = False
    name_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """One connector. Immutable; made by ``files.load_connectors``."""

    name: str
    connection: Connection
    selection: TableSelection
    query: str | None = field(default=None, repr=False)
    masked: bool = False
    """The query must not be shown."""
    suffix: str = ""
    catalog: str | None = None
    """``catalog.pattern``: the database must be this one."""
    mode: Mode
    cursor: CursorColumns
    poll_interval_ms: int
    table_poll_interval_ms: int = 60_000
    batch_max_rows: int
    retry_attempts: int = -1
    serializable: bool = False
    topic_prefix: str
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    key_converter: ConverterSpec
    value_converter: ConverterSpec
    header_converter: ConverterSpec = field(default_factory=simple_headers)
    transforms: tuple[TransformSpec, ...]
    errors: ErrorPolicy = field(default_factory=ErrorPolicy)
    topics: TopicRules
    producer: Mapping[str, str] = field(repr=False)
    """Properties of the producer by librdkafka's names; may hold credentials."""
    soft_delete: SoftDelete | None
    sweep_interval_ms: int = 0
    """Between two looks for keys that a table has lost; 0: only where something else makes it necessary."""
    max_removed_percent: int = MAX_REMOVED_PERCENT
    """More of a directory's keys are not removed at once without an operator."""
    heartbeat_interval_ms: int = 0
    """Between two heartbeats; 0: none."""
    bulk_deletes: bool = False
    """Mode bulk: after each poll, keys that the table has not are removed from the topic."""
    transactions: bool
    """Records and offset in one Kafka transaction; false: at least once."""
    notes: tuple[str, ...] = ()
    """Keys that were given and have no effect here, each with the reason."""

    def topic(self, table: str) -> str:
        """The topic of a table, before transforms: ``<topic.prefix><table>``, without the table's schema.

        Of a query the prefix is the whole name.
        """
        return self.topic_prefix if self.query is not None else f"{self.topic_prefix}{table}"
