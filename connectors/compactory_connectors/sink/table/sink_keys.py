"""The table of a sink's keys: what each means, its default, what it accepts and why one is refused.

The names are those of the Confluent JDBC sink connector and of Kafka Connect. A key that is not here is refused.
"""

from __future__ import annotations

from typing import Any

from compactory_connectors.source.setting import (
    Setting,
    at_least,
    boolean,
    honoured,
    moot,
    names,
    one_of,
    refused,
    required_text,
)

__all__ = ["SETTINGS", "find"]

_STRING = "org.apache.kafka.connect.storage.StringConverter"
_JSON = "org.apache.kafka.connect.json.JsonConverter"


def _lower(*allowed: str) -> Any:
    parse = one_of(*allowed)
    return lambda value: parse(value.strip().lower())


SETTINGS: tuple[Setting, ...] = (
    honoured("name", "name of the sink: its offsets and its group", None, required_text),
    honoured(
        "connector.class",
        "the connector that this one stands in for",
        "io.confluent.connect.jdbc.JdbcSinkConnector",
        one_of("io.confluent.connect.jdbc.JdbcSinkConnector", "JdbcSinkConnector", "JdbcSink"),
    ),
    honoured("topics", "topics, separated by commas", "", names),
    honoured("topics.regex", "pattern of topics, in place of topics", ""),
    honoured(
        "connection.url", "JDBC URL of a Postgres database, or a postgresql:// URL", None, required_text, secret=True
    ),
    honoured("connection.user", "user, where the URL has none"),
    honoured("connection.password", "password, where the URL has none", secret=True),
    honoured("insert.mode", "insert, upsert or update", "insert", _lower("insert", "upsert", "update")),
    honoured(
        "pk.mode", "where the primary key comes from", "none", _lower("none", "kafka", "record_key", "record_value")
    ),
    honoured("pk.fields", "columns of the primary key; empty: all fields of the key or value", "", names),
    honoured("delete.enabled", "a tombstone deletes the row of its key", "false", boolean),
    honoured("fields.whitelist", "fields of the value to write; empty: all", "", names),
    honoured("table.name.format", "the table of a topic: ${topic} stands for its name", "${topic}", required_text),
    honoured("auto.create", "create missing tables from the records' schema", "false", boolean),
    honoured("auto.evolve", "add missing columns from the records' schema", "false", boolean),
    honoured("batch.size", "records in a transaction at most", "10000", at_least(1)),
    honoured("key.converter", "class that wrote the keys", _STRING, required_text),
    honoured("key.converter.*", "options of the key's converter"),
    honoured("value.converter", "class that wrote the values", _JSON, required_text),
    honoured("value.converter.*", "options of the value's converter"),
    honoured("transforms", "aliases of the transforms, in order, separated by commas", "", names),
    honoured("transforms.*", "class and options of a transform"),
    honoured("predicates", "aliases of the conditions of transforms, separated by commas", "", names),
    honoured("predicates.*", "class and options of a condition"),
    honoured(
        "errors.tolerance", "a failed record stops the sink (none) or is set aside (all)", "none", _lower("none", "all")
    ),
    honoured("errors.deadletterqueue.topic.name", "topic of failed records, in place of the table", ""),
    honoured("errors.deadletterqueue.context.headers.enable", "write headers that tell why", "false", boolean),
    honoured("consumer.override.*", "the consumer's properties, by librdkafka's names"),
    honoured("config.providers", "aliases of providers of placeholders", "", names),
    honoured("config.providers.*", "class and options of a provider"),
    honoured(
        "compactory.start", "where partitions begin that were never used", "earliest", one_of("earliest", "latest")
    ),
    honoured("compactory.parallel", "parts of a partition's keys written at a time", "1", at_least(1)),
    moot("tasks.max", "number of tasks", "each process reads its share of the partitions; start more of them"),
    moot("max.retries", "tries of a failed batch", "an outage is waited out, however long it lasts", at_least(0)),
    moot("retry.backoff.ms", "pause between tries", "exponential back-off with jitter, 10 s at the most", at_least(0)),
    moot("connection.attempts", "attempts to connect", "an outage is waited out", at_least(1)),
    moot("connection.backoff.ms", "pause between attempts", "exponential back-off with jitter", at_least(0)),
    moot("table.types", "kinds of relations", "any relation that takes the statements is written"),
    moot("header.converter", "class that wrote the headers", "headers are not written to tables"),
    moot("trim.sensitive.log", "leave values out of logs", "no log shows a value"),
    moot("dialect.name", "dialect of SQL", "only Postgres is supported"),
    moot("quote.sql.identifiers", "quoting of names", "names are always quoted"),
    moot("errors.log.enable", "log failed records", "each is logged without its value"),
    moot("errors.log.include.messages", "log values", "no log shows a value"),
    moot("errors.retry.timeout", "how long a failed operation is tried again", "an outage is waited out"),
    moot("errors.retry.delay.max.ms", "pause between tries", "10 s at the most"),
    moot("errors.deadletterqueue.topic.replication.factor", "of the topic", "the topic is not created here"),
    moot("mssql.use.merge.holdlock", "for another database", "only Postgres is supported"),
    honoured("date.calendar.system", "calendar of days before 1582: Java's", "LEGACY", one_of("LEGACY")),
    refused("db.timezone", "time zone of timestamps", "times are written in UTC; leave it out"),
    refused("date.timezone", "time zone of dates", "dates are written as they are; leave it out"),
)

_EXACT = {item.name: item for item in SETTINGS if not item.name.endswith("*")}


def find(key: str) -> Setting | None:
    """The entry of a key; None where it is unknown."""
    if key in _EXACT:
        return _EXACT[key]
    return next((item for item in SETTINGS if item.name.endswith("*") and key.startswith(item.name[:-1])), None)
