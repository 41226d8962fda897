"""A connector: the JSON of a Kafka Connect JDBC source connector, read, checked and frozen.

``load_connector`` finds every problem before anything starts and raises them together. Nothing here connects anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError

from .connector_json import read_settings
from .connector_keys import SETTINGS, find_setting, unknown_key
from .converters import ConverterSpec, read_converter
from .jdbc_url import Connection, parse_url
from .placeholder import Placeholders, has_placeholder
from .setting import Status, nearest, rejected
from .transforms import TransformSpec, read_transforms

__all__ = ["ConnectorConfig", "Mode", "SoftDelete", "TableName", "TopicCreation", "load_connector", "parse_connector"]


_IDENTIFIER_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')
_IDENTIFIER = re.compile(rf"(?:{_IDENTIFIER_PART.pattern})(?:\.(?:{_IDENTIFIER_PART.pattern}))*")


class Mode(Enum):
    """How changed rows are found."""

    TIMESTAMP_INCREMENTING = "timestamp+incrementing"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the connector writes it; ``schema`` None: the first one of the search path that has it."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class SoftDelete:
    """``column`` false means deleted: sent as a tombstone, or where ``tombstone`` is false as its value."""

    column: str
    tombstone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreation:
    """``topic.creation.default.*``: what a topic gets when the source creates it. -1: the broker's default."""

    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """One connector. Immutable; made by ``load_connector``."""

    name: str
    connection: Connection
    tables: tuple[TableName, ...]
    mode: Mode
    incrementing_column: str
    timestamp_columns: tuple[str, ...]
    validate_non_null: bool
    poll_interval_ms: int
    batch_max_rows: int
    topic_prefix: str
    key_converter: ConverterSpec
    value_converter: ConverterSpec
    transforms: tuple[TransformSpec, ...]
    topic_creation: TopicCreation
    producer: Mapping[str, str] = field(repr=False)
    """``producer.override.*`` without the prefix, by their Kafka names; may hold credentials."""
    soft_delete: SoftDelete | None
    transactions: bool
    """Records and offset in one Kafka transaction; false: at least once."""

    def topic(self, table: str) -> str:
        """The topic of a table, before transforms: ``<topic.prefix><table>``, without the table's schema."""
        return f"{self.topic_prefix}{table}"


def load_connector(
    path: Path, providers: Mapping[str, Path] | None = None, environment: Mapping[str, str] | None = None
) -> ConnectorConfig:
    """The connector of a JSON file.

    ``providers`` are those of ``--provider NAME=FILE``; ``environment`` defaults to the process's.
    Raises ConfigError with every problem found, each beginning with the file's name.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    try:
        return parse_connector(text, default_name=path.stem, providers=providers, environment=environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None


def parse_connector(
    text: str,
    *,
    default_name: str,
    providers: Mapping[str, Path] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ConnectorConfig:
    """The connector of JSON text, bare or as Connect's REST API has it: ``{"name": …, "config": {…}}``.

    Raises ConfigError with every problem found.
    """
    written = read_settings(text)
    placeholders = Placeholders(providers or {}, os.environ if environment is None else environment, written)
    return _Reader(written, placeholders).connector(default_name)


class _Reader:
    """Reads the settings of one connector, gathering problems instead of stopping at the first."""

    def __init__(self, written: Mapping[str, str], placeholders: Placeholders) -> None:
        self._written = written
        self._problems: list[str] = []
        self._resolved: dict[str, str] = {}
        self._failed: set[str] = set()
        for key, text in written.items():
            value = text if key.startswith("config.providers") else placeholders.resolve(key, text)
            if value is None:
                self._failed.add(key)
            else:
                self._resolved[key] = value
        self._problems += dict.fromkeys(placeholders.problems)
        self._values = self._parsed()

    def connector(self, default_name: str) -> ConnectorConfig:
        """The finished connector; raises ConfigError when anything was wrong."""
        connection = self._connection()
        tables = self._tables()
        timestamps = self._columns()
        key, value = self._converter("key.converter"), self._converter("value.converter")
        transforms, problems = read_transforms(self._values["transforms"], self._below("transforms."))
        self._problems += problems
        soft_delete = self._soft_delete()
        producer = self._below("producer.override.")
        self._check_transactions(producer)
        if "topic.prefix" not in self._written:
            self._missing("topic.prefix", "the topic of a table is this and the table's name")
        if self._problems:
            raise ConfigError(self._problems)
        assert connection is not None
        assert key is not None
        assert value is not None
        return ConnectorConfig(
            name=self._values["name"] if "name" in self._written else default_name,
            connection=connection,
            tables=tables,
            mode=Mode.TIMESTAMP_INCREMENTING,
            incrementing_column=self._values["incrementing.column.name"],
            timestamp_columns=timestamps,
            validate_non_null=self._values["validate.non.null"],
            poll_interval_ms=self._values["poll.interval.ms"],
            batch_max_rows=self._values["batch.max.rows"],
            topic_prefix=self._values["topic.prefix"],
            key_converter=key,
            value_converter=value,
            transforms=transforms,
            topic_creation=self._topic_creation(),
            producer=producer,
            soft_delete=soft_delete,
            transactions=self._values["compactory.transactions"],
        )

    def _parsed(self) -> dict[str, Any]:
        """Every known key's value; a default where it is not given or was refused."""
        for key in self._written:
            setting = find_setting(key)
            if setting is None:
                self._problems.append(unknown_key(key))
            elif setting.status is Status.REFUSED:
                self._problems.append(f"{key}: {setting.note}")
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            if setting.status is Status.REFUSED or setting.name.endswith(".*"):
                continue
            values[setting.name] = None if setting.default is None else setting.parse(setting.default)
            if setting.name in self._resolved:
                try:
                    values[setting.name] = setting.parse(self._resolved[setting.name])
                except ValueError as error:
                    shown = self._shown(setting.name, setting.secret)
                    self._problems.append(f"{setting.name}: {rejected(error, shown)}")
        return values

    def _shown(self, key: str, secret: bool) -> str:
        """The value as it was written; what a placeholder stood for is never shown."""
        if secret or not self._written[key]:
            return ""
        written = self._written[key]
        return f", not what {written} stands for" if has_placeholder(written) else f", not {written!r}"

    def _missing(self, key: str, meaning: str) -> None:
        if key not in self._failed:
            self._problems.append(f"{key}: missing; {meaning}")

    def _below(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value for key, value in self._resolved.items() if key.startswith(prefix)}

    def _connection(self) -> Connection | None:
        url = self._values["connection.url"]
        if url is None:
            if "connection.url" not in self._written:
                self._missing("connection.url", "give the JDBC URL of the database")
            return None
        try:
            return parse_url(url, self._values["connection.user"], self._values["connection.password"])
        except ValueError as error:
            self._problems += [f"connection.url: {line}" for line in str(error).splitlines()]
            return None

    def _tables(self) -> tuple[TableName, ...]:
        written = self._values["table.whitelist"]
        if not written:
            self._missing("table.whitelist", "name the tables to poll, separated by commas")
            return ()
        tables = []
        for text in dict.fromkeys(written):
            parts = split_identifier(text)
            if parts is None or len(parts) > 2:
                self._problems.append(f"table.whitelist: {text!r} is not a table; write table or schema.table")
                continue
            tables.append(TableName(parts[0] if len(parts) == 2 else None, parts[-1]))
        return tuple(tables)

    def _columns(self) -> tuple[str, ...]:
        mode = self._values["mode"]
        if mode is None:
            self._missing("mode", "set it to timestamp+incrementing")
            return ()
        if mode != Mode.TIMESTAMP_INCREMENTING.value:
            known = ("bulk", "incrementing", "timestamp")
            why = (
                "is not supported yet"
                if mode in known
                else f"is not a mode{nearest(mode, (*known, 'timestamp+incrementing'))}"
            )
            self._problems.append(f"mode: {mode!r} {why}; set it to timestamp+incrementing")
            return ()
        if not self._values["incrementing.column.name"]:
            self._missing(
                "incrementing.column.name", "mode timestamp+incrementing needs a column that grows with every row"
            )
        columns: tuple[str, ...] = self._values["timestamp.column.name"] or ()
        if not columns:
            self._missing("timestamp.column.name", "mode timestamp+incrementing needs the column of the last change")
        if len(columns) > 1:
            self._problems.append("timestamp.column.name: several columns are not supported yet; name one")
        return columns

    def _converter(self, key: str) -> ConverterSpec | None:
        spec, problems = read_converter(self._values[key], self._below(key + "."))
        self._problems += [f"{key}{problem}" for problem in problems]
        return spec

    def _soft_delete(self) -> SoftDelete | None:
        column = self._values["compactory.soft.delete.column"]
        if column is None:
            if "compactory.soft.delete.mode" in self._written:
                self._missing("compactory.soft.delete.column", "compactory.soft.delete.mode needs it")
            return None
        return SoftDelete(column, tombstone=self._values["compactory.soft.delete.mode"] == "tombstone")

    def _topic_creation(self) -> TopicCreation:
        below = self._below("topic.creation.default.")
        return TopicCreation(
            partitions=self._values["topic.creation.default.partitions"],
            replication_factor=self._values["topic.creation.default.replication.factor"],
            configs={name: value for name, value in below.items() if name not in {"partitions", "replication.factor"}},
        )

    def _check_transactions(self, producer: Mapping[str, str]) -> None:
        transactions = self._values["compactory.transactions"]
        if not transactions and self._values["exactly.once.support"] == "required":
            self._problems.append(
                "compactory.transactions: off contradicts exactly.once.support=required; drop one of them"
            )
        if "transactional.id" in producer:
            self._problems.append("producer.override.transactional.id: is made of the connector's name; leave it out")
        if transactions and producer.get("enable.idempotence", "true") != "true":
            self._problems.append("producer.override.enable.idempotence: transactions need true; leave it out")
        if producer.get("acks", "all") not in {"all", "-1"}:
            self._problems.append("producer.override.acks: must be all, or a committed row can be lost; leave it out")


def split_identifier(text: str) -> list[str] | None:
    """``schema.table`` → its parts; a part in double quotes may hold dots and doubled quotes. None when malformed."""
    if not _IDENTIFIER.fullmatch(text):
        return None
    return [part[1:-1].replace('""', '"') if part.startswith('"') else part for part in _IDENTIFIER_PART.findall(text)]
