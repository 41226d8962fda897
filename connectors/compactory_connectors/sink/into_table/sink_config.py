"""The configuration of a Kafka Connect JDBC sink connector, read, checked and frozen: all problems at once.

The names are those of the Confluent JDBC sink connector and of Kafka Connect. A key that is not here is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactory.errors import ConfigError
from compactory_connectors.connect.config.config_file import read_file
from compactory_connectors.connect.config.key_reader import KeyReader
from compactory_connectors.connect.config.placeholder import Placeholders
from compactory_connectors.connect.converters.decoders import Decoder, decoder_of
from compactory_connectors.connect.javatext.java_regex import java_pattern
from compactory_connectors.connect.setting import (
    Setting,
    at_least,
    boolean,
    honoured,
    moot,
    names,
    one_of,
    option,
    options_of,
    refused,
    required_text,
)
from compactory_connectors.postgres.jdbc_url import Connection

from .target import table_identifier

__all__ = ["SinkConfig", "load_sink"]


def _lower(*allowed: str) -> Any:
    parse = one_of(*allowed)
    return lambda value: parse(value.strip().lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """The configuration of a sink: values of keys, then values made of several keys. Made by `load_sink`."""

    name: str = option("name of the sink: its offsets and its group", "")
    topics: tuple[str, ...] = option("names, or a pattern that begins with ``^``", "", names)
    insert_mode: str = option("insert, upsert or update", "insert", _lower("insert", "upsert", "update"))
    pk_mode: str = option(
        "where the primary key comes from", "none", _lower("none", "kafka", "record_key", "record_value")
    )
    pk_fields: tuple[str, ...] = option("columns of the key; empty: all fields of the key or value", "", names)
    delete_enabled: bool = option("a tombstone deletes the row of its key", "false", boolean)
    fields_whitelist: tuple[str, ...] = option("fields of the value to write; empty: all", "", names)
    table_name_format: str = option("the table: ${topic} stands for the topic's name", "${topic}", required_text)
    auto_create: bool = option("create missing tables from the records' schema", "false", boolean)
    auto_evolve: bool = option("add missing columns from the records' schema", "false", boolean)
    batch_size: int = option("records in a transaction at most", "10000", at_least(1))
    errors_tolerance: str = option("a failed record stops it, or is set aside", "none", _lower("none", "all"))
    start: str = option(
        "where partitions begin that were never used", "earliest", one_of("earliest", "latest"), name="compactory.start"
    )
    connection: Connection
    key: Decoder
    value: Decoder
    consumer: Mapping[str, str] = field(repr=False)
    notes: tuple[str, ...]
    """Keys without effect, each with the reason."""


_CONNECTOR = "io.confluent.connect.jdbc.JdbcSinkConnector"
_MOOT = {
    "tasks.max": "each process reads its share of the partitions; start more of them",
    "max.retries": "an outage is waited out, however long it lasts",
    "retry.backoff.ms": "exponential back-off with jitter, 10 s at the most",
    "connection.attempts": "an outage is waited out",
    "connection.backoff.ms": "exponential back-off with jitter",
    "table.types": "any relation that takes the statements is written",
    "header.converter": "headers are not written to tables",
    "header.converter.*": "headers are not written to tables",
    "trim.sensitive.log": "no log shows a value",
    "dialect.name": "only Postgres is supported",
    "quote.sql.identifiers": "names are always quoted",
    "errors.log.enable": "each is logged without its value",
    "errors.log.include.messages": "no log shows a value",
    "errors.retry.timeout": "an outage is waited out",
    "errors.retry.delay.max.ms": "10 s at the most",
    "errors.deadletterqueue.*": "records are set aside in the database: compactory sink failed lists them",
    "mssql.use.merge.holdlock": "only Postgres is supported",
}
_NO_TRANSFORMS = "a sink has none: choose fields by fields.whitelist, or write a function with TransactionalSink"
_SETTINGS: tuple[Setting, ...] = (
    *options_of(SinkConfig),
    honoured("connector.class", "", _CONNECTOR, one_of(_CONNECTOR, "JdbcSinkConnector", "JdbcSink")),
    honoured("topics.regex", "pattern of topics, in place of topics", ""),
    honoured("connection.url", "a JDBC URL, or a postgresql:// URL", None, required_text, secret=True),
    honoured("connection.user", "user, where the URL has none"),
    honoured("connection.password", "password, where the URL has none", secret=True),
    honoured("key.converter", "the class", "org.apache.kafka.connect.storage.StringConverter", required_text),
    honoured("value.converter", "the class", "org.apache.kafka.connect.json.JsonConverter", required_text),
    honoured("config.providers", "aliases of providers of placeholders", "", names),
    *(honoured(f"{name}.*", "class and options") for name in ("key.converter", "value.converter", "config.providers")),
    honoured("consumer.override.*", "the consumer's properties, by librdkafka's names"),
    honoured("date.calendar.system", "calendar of days before 1582: Java's", "LEGACY", one_of("LEGACY")),
    *(moot(name, "", note) for name, note in _MOOT.items()),
    *(refused(name, "", _NO_TRANSFORMS) for name in ("transforms", "transforms.*", "predicates", "predicates.*")),
    refused("db.timezone", "", "times are written in UTC; leave it out"),
    refused("date.timezone", "", "dates are written as they are; leave it out"),
)


def load_sink(path: Path, providers: Mapping[str, Path] | None = None) -> SinkConfig:
    """The sink of a JSON or .properties file. Raises ConfigError with every problem, each with the file's name."""
    written = read_file(path)
    if len(written) != 1:
        raise ConfigError(f"{path}: holds {len(written)} sinks, and one is expected")
    try:
        return _SinkReader(_SETTINGS, written[0], Placeholders(providers or {}, os.environ, written[0])).sink(path.stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {problem}" for problem in error.problems) from None


class _SinkReader(KeyReader):
    def sink(self, default_name: str) -> SinkConfig:
        connection, topics = self._connection(), self._topics()
        self._check_modes()
        key, value = self._decoder("key.converter"), self._decoder("value.converter")
        consumer = self._below("consumer.override.")
        self._check_client("consumer.override.", consumer)
        if self._problems:
            raise ConfigError(map(self._placeholders.hidden, self._problems))
        assert connection is not None
        assert key is not None
        assert value is not None
        values = self._fields(SinkConfig)
        return SinkConfig(
            **{**values, "name": values["name"] or default_name, "topics": topics},
            connection=connection,
            key=key,
            value=value,
            consumer=consumer,
            notes=tuple(self._notes),
        )

    def _topics(self) -> tuple[str, ...]:
        topics: tuple[str, ...] = self._values["topics"]
        pattern: str = self._values["topics.regex"]
        if topics and pattern:
            self._problems.append("topics.regex: is given beside topics; drop one of them")
        if not topics and not pattern:
            self._missing("topics", "name the topics, separated by commas")
        if not pattern:
            return topics
        try:
            java_pattern(pattern)
        except ValueError as error:
            self._problems.append(f"topics.regex: {error}")
        return (f"^{pattern}",)

    def _check_modes(self) -> None:
        mode, pk = self._values["insert.mode"], self._values["pk.mode"]
        if pk == "none" and mode != "insert":
            self._problems.append(
                f"pk.mode: insert.mode={mode} needs a primary key; set record_key, record_value or kafka"
            )
        if pk == "kafka" and len(self._values["pk.fields"]) not in {0, 3}:
            self._problems.append("pk.fields: pk.mode=kafka takes three names: of topic, partition and offset")
        try:
            table_identifier(self._values["table.name.format"].replace("${topic}", "topic"))
        except ValueError as error:
            self._problems.append(f"table.name.format: {error}")
        if self._values["delete.enabled"] and pk != "record_key":
            self._problems.append("delete.enabled: needs pk.mode=record_key, as a tombstone has nothing but its key")

    def _decoder(self, key: str) -> Decoder | None:
        converter = self._converter(key)
        return None if converter is None else decoder_of(converter)
