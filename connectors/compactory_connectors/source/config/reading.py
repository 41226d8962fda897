"""From the settings of one connector, as text, to the finished connector: all problems at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from compactory.errors import ConfigError
from compactory_connectors.connect.config.key_reader import KeyReader
from compactory_connectors.connect.config.placeholder import Placeholders, has_placeholder
from compactory_connectors.connect.converters import Converter
from compactory_connectors.connect.converters.json_converter import JsonConverter
from compactory_connectors.postgres.jdbc_url import Connection
from compactory_sql.naming import split_name

from .connector import (
    ColumnOptions,
    ConnectorConfig,
    CursorColumns,
    ErrorPolicy,
    Mode,
    NumericMapping,
    SoftDelete,
    TopicCreation,
)
from .keys import SETTINGS
from .producer_properties import read_producer
from .selection import TableName, TableSelection

__all__ = ["ConnectorReader"]

_KEYS_OF_NAMES = ("table.whitelist", "table.blacklist", "incrementing.column.name", "timestamp.column.name")
_KEYS_OF_PATTERNS = (
    "table.include.list",
    "table.exclude.list",
    "incrementing.column.mapping",
    "timestamp.columns.mapping",
)
_LISTS = ("table.whitelist", "table.blacklist", "table.include.list", "table.exclude.list")
_SELECT = re.compile(r"(?is)(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:(?:SELECT|WITH|VALUES|TABLE)\b|\()")


class ConnectorReader(KeyReader):
    """Reads the settings of one connector."""

    def __init__(self, written: Mapping[str, str], placeholders: Placeholders) -> None:
        super().__init__(SETTINGS, written, placeholders)

    def connector(self, default_name: str) -> ConnectorConfig:
        """Return the connector. Raises ConfigError with every problem."""
        connection = self._connection()
        query = self._query()
        selection = self._selection(query, connection)
        mode = self._mode()
        cursor = self._cursor(mode, query)
        key, value = self._converter("key.converter"), self._converter("value.converter")
        transforms = self._transforms()
        self._check_function(value)
        soft_delete, bulk_deletes = self._soft_delete(mode), self._bulk_deletes(mode)
        transactions = self._transactions()
        producer = self._producer(transactions)
        self._prefix(query)
        if self._problems:
            raise ConfigError(map(self._placeholders.hidden, self._problems))
        assert connection is not None
        assert key is not None
        assert value is not None
        return ConnectorConfig(
            **self._fields(ConnectorConfig)
            | {
                "name": self._values["name"] if "name" in self._written else default_name,
                "bulk_deletes": bulk_deletes,
            },
            connection=connection,
            selection=selection,
            query=query,
            masked=self._masked(),
            cursor=cursor,
            columns=self._columns(),
            key_converter=key,
            value_converter=value,
            transforms=transforms,
            errors=ErrorPolicy(**self._fields(ErrorPolicy)),
            topics=self._topics(),
            producer=producer,
            soft_delete=soft_delete,
            notes=tuple(self._notes),
        )

    def _prefix(self, query: str | None) -> None:
        if "topic.prefix" not in self._written:
            self._missing("topic.prefix", "the topic of a table is this and the table's name")
        elif query is not None and not self._values["topic.prefix"] and "topic.prefix" not in self._refused_keys():
            self._missing("topic.prefix", "with a query it is the whole name of the topic")

    def _masked(self) -> bool:
        """Return True if the query must not be shown: a placeholder in it may stand for a secret."""
        written = (self._written.get(key, "") for key in ("query", "query.suffix"))
        return bool(self._values["query.masked"]) or any(map(has_placeholder, written))

    def _query(self) -> str | None:
        if self._has_text("query") and self._has_text("query.masked"):
            self._problems.append("query.masked: is given beside query; drop one of them")
        key = "query.masked" if self._has_text("query.masked") else "query"
        text = (self._values[key] or "").strip().rstrip(";").rstrip()
        if not text:
            return None
        if not _SELECT.match(text):
            self._problems.append(f"{key}: must begin with SELECT or WITH")
        for list_key in _LISTS:
            if self._has_text(list_key):
                self._problems.append(f"{list_key}: is given beside {key}; drop one of them")
        return text

    def _selection(self, query: str | None, connection: Connection | None) -> TableSelection:
        values = self._values
        old, new = [[key for key in keys if self._has_text(key)] for keys in (_KEYS_OF_NAMES, _KEYS_OF_PATTERNS)]
        if query is None:
            self._check_lists(old, new)
        database = connection.conninfo.get("dbname") if connection is not None else None
        return TableSelection(
            listed=self._names("table.whitelist", database),
            unlisted=self._names("table.blacklist", database),
            included=values["table.include.list"] or (),
            excluded=values["table.exclude.list"] or (),
            schemas=values["schema.pattern"] or None,
            kinds=values["table.types"],
        )

    def _check_lists(self, old: list[str], new: list[str]) -> None:
        if old and new:
            self._problems.append(
                f"{new[0]}: is given beside {', '.join(old)}; Kafka Connect takes either {', '.join(_KEYS_OF_NAMES)},"
                f" or {', '.join(_KEYS_OF_PATTERNS)}"
            )
        if self._has_text("table.whitelist") and self._has_text("table.blacklist"):
            self._problems.append("table.blacklist: is given beside table.whitelist; drop one of them")
        if self._has_text("table.exclude.list") and not self._has_text("table.include.list"):
            self._problems.append("table.exclude.list: needs table.include.list, of which it takes tables away")
        elif new and not self._has_text("table.include.list"):
            self._missing("table.include.list", f"{new[0]} needs it")
        if not old and not new and not self._failed.intersection(_KEYS_OF_NAMES + _KEYS_OF_PATTERNS):
            self._missing("table.whitelist", "name the tables to poll, separated by commas")

    def _names(self, key: str, database: str | None) -> tuple[TableName, ...]:
        """Return tables by name. With pgjdbc from 42.7.5 on the connector may want the database before the schema."""
        tables = []
        for text in dict.fromkeys(self._values[key] or ()):
            parts = split_name(text)
            if parts is not None and len(parts) == 3 and parts[0][0] == database:
                parts = parts[1:]
            if parts is None or len(parts) > 2:
                self._problems.append(f"{key}: {text!r} is not a table; write table or schema.table")
                continue
            tables.append(TableName(parts[0][0] if len(parts) == 2 else None, parts[-1][0]))
        return tuple(tables)

    def _mode(self) -> Mode | None:
        mode: Mode | None = self._values["mode"]
        if mode is None:
            if "mode" not in self._refused_keys():
                self._missing("mode", "set it to bulk, incrementing, timestamp or timestamp+incrementing")
            return None
        return mode

    def _cursor(self, mode: Mode | None, query: str | None) -> CursorColumns:
        if mode is not None:
            self._check_cursor(mode, query)
        return CursorColumns(**self._fields(CursorColumns))

    def _check_cursor(self, mode: Mode, query: str | None) -> None:
        needs = {
            ("incrementing.column.name", "incrementing.column.mapping"): mode.incrementing,
            ("timestamp.column.name", "timestamp.columns.mapping"): mode.timestamp,
        }
        for (name, mapping), needed in needs.items():
            if not needed:
                self._unneeded(mode, name, mapping)
            elif name == "timestamp.column.name" and not self._has_text(name) and not self._has_text(mapping):
                key = mapping if self._has_text("table.include.list") else name
                if key not in self._refused_keys():
                    self._missing(key, f"mode {mode.value} needs the column of the last change")
            elif query is not None and not self._has_text(name):
                self._missing(name, f"with a query, mode {mode.value} can't find the column by itself")
        if not mode.timestamp:
            unused = [key for key in ("timestamp.initial", "timestamp.delay.interval.ms") if key in self._written]
            self._notes += [f"{key}: has no effect: mode {mode.value} has no timestamp" for key in unused]

    def _unneeded(self, mode: Mode, name: str, mapping: str) -> None:
        if self._has_text(mapping):
            self._problems.append(f"{mapping}: mode {mode.value} has no use for it; leave it out")
        elif self._has_text(name):
            self._notes.append(f"{name}: has no effect: mode {mode.value} has no use for it")

    def _columns(self) -> ColumnOptions:
        values = self._values
        mapping = values["numeric.mapping"]
        if "numeric.mapping" not in self._written and values["numeric.precision.mapping"]:
            mapping = NumericMapping.PRECISION_ONLY
        return ColumnOptions(
            numeric_mapping=mapping,
            granularity=values["timestamp.granularity"],
            zone=values["db.timezone"],
            types=values["compactory.types"],
        )

    def _bulk_deletes(self, mode: Mode | None) -> bool:
        deletes: bool = self._values["compactory.bulk.deletes"]
        if deletes and mode is not Mode.BULK:
            self._notes.append("compactory.bulk.deletes: has no effect: it is for mode bulk")
        if deletes and self._values["query.suffix"]:
            self._problems.append("compactory.bulk.deletes: a query.suffix may leave out rows that are there; drop one")
        return deletes and mode is Mode.BULK

    def _soft_delete(self, mode: Mode | None) -> SoftDelete | None:
        column = self._values["compactory.soft.delete.column"]
        if column is None:
            if "compactory.soft.delete.mode" in self._written:
                self._missing("compactory.soft.delete.column", "compactory.soft.delete.mode needs it")
            return None
        if mode is Mode.INCREMENTING:
            self._problems.append(
                "compactory.soft.delete.column: mode incrementing sends new rows only and never sees a deactivation;"
                " use timestamp+incrementing"
            )
        return SoftDelete(column, tombstone=self._values["compactory.soft.delete.mode"] == "tombstone")

    def _check_function(self, value: Converter | None) -> None:
        free = value is None or (isinstance(value, JsonConverter) and not value.schemas_enable)
        if self._values["compactory.transform"] and not free:
            self._problems.append(
                "compactory.transform: values must be JSON without schemas; set value.converter to"
                " org.apache.kafka.connect.json.JsonConverter and value.converter.schemas.enable=false"
            )

    def _producer(self, transactions: bool) -> dict[str, str]:
        producer = read_producer(self._below("producer.override."), transactions=transactions)
        self._problems += producer.problems
        self._check_client("producer.override.", producer.properties)
        self._notes += producer.notes
        return producer.properties

    def _topics(self) -> TopicCreation:
        below = "topic.creation.default."
        configs = self._below(below)
        partitions, replicas = "partitions", "replication.factor"
        return TopicCreation(
            partitions=self._values[below + partitions],
            replication_factor=self._values[below + replicas],
            configs={key: value for key, value in configs.items() if key not in {partitions, replicas}},
        )

    def _transactions(self) -> bool:
        transactions: bool = self._values["compactory.transactions"]
        if not transactions and self._values["exactly.once.support"] == "required":
            self._problems.append(
                "compactory.transactions: off contradicts exactly.once.support=required; drop one of them"
            )
        return transactions
