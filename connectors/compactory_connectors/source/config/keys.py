"""The table of connector keys: what each means, its default, what it accepts and why a key is refused.

The names are those of the Confluent JDBC source connector and of Kafka Connect. Every key that they know is here, so
that none is ever ignored: it is HONOURED, MOOT (accepted, because nothing it could change exists here; the note says
why) or REFUSED (the note says why and what to do). Documentation is generated from this table.
"""

from __future__ import annotations

from compactory_connectors.connect.javatext.java_zone import read_zone
from compactory_connectors.connect.setting import (
    Setting,
    at_least,
    boolean,
    honoured,
    member_of,
    moot,
    names,
    one_of,
    options_of,
    refused,
    required_text,
    text,
)

from .connector import (
    ColumnTypes,
    ConnectorConfig,
    CursorColumns,
    ErrorPolicy,
    Granularity,
    NumericMapping,
)
from .selection import patterns, table_types

__all__ = ["SETTINGS"]

_COUNT = at_least(1, also=-1)
_NO_HEADERS = "the source writes no headers; leave it out"

_CONNECTION: tuple[Setting, ...] = (
    honoured(
        "connector.class",
        "the connector that this one stands in for",
        "io.confluent.connect.jdbc.JdbcSourceConnector",
        one_of(
            "io.confluent.connect.jdbc.JdbcSourceConnector",
            "JdbcSourceConnector",
            "JdbcSource",
            otherwise="Compactory stands in for this connector only",
        ),
    ),
    moot("connector.plugin.version", "version of the connector to load", "nothing is loaded"),
    moot("key.converter.plugin.version", "version of the converter to load", "nothing is loaded"),
    moot("value.converter.plugin.version", "version of the converter to load", "nothing is loaded"),
    moot("tasks.max", "number of tasks", "one process polls all tables of a connector"),
    moot("tasks.max.enforce", "fail above tasks.max", "there is one task"),
    honoured(
        "connection.url", "JDBC URL of a Postgres database, or a postgresql:// URL", None, required_text, secret=True
    ),
    honoured("connection.user", "user, where the URL has none"),
    honoured("connection.password", "password, where the URL has none", secret=True),
    moot("connection.attempts", "attempts to connect", "the source waits as long as an outage lasts"),
    moot(
        "connection.backoff.ms",
        "pause between attempts",
        "attempts are spaced by exponential back-off with jitter, 10 s at the most",
    ),
    refused("connection.oauth2.*", "token based login", "not supported; give connection.user and connection.password"),
    refused(
        "jdbc.credentials.provider.*", "class that gives credentials", "Java classes can't be loaded; use a placeholder"
    ),
    honoured(
        "dialect.name",
        "dialect of SQL",
        "PostgreSqlDatabaseDialect",
        one_of("PostgreSqlDatabaseDialect", "", otherwise="only Postgres is supported"),
    ),
    moot("quote.sql.identifiers", "whether names are quoted", "names are written as Postgres has them"),
    moot("config.action.reload", "action after placeholders change", "read at start", one_of("restart", "none")),
    honoured("config.providers", "names of the providers of placeholders", "", names),
    honoured("config.providers.*", "class and parameters of a provider"),
)
"""Keys about the connector itself and its connection to Postgres."""

_TABLES: tuple[Setting, ...] = (
    honoured("table.whitelist", "tables to poll, [schema.]table, separated by commas", None, names),
    honoured("table.blacklist", "tables not to poll; all others are polled", None, names),
    honoured("table.include.list", "regular expressions of schema.table to poll", None, patterns),
    honoured("table.exclude.list", "regular expressions of included tables not to poll", None, patterns),
    honoured("schema.pattern", "schemas to look in, with the wildcards % and _ of LIKE; empty: all", None, text),
    honoured(
        "table.types",
        "kinds of relation to poll: TABLE, PARTITIONED TABLE, VIEW, MATERIALIZED VIEW, FOREIGN TABLE",
        "TABLE",
        table_types,
    ),
    moot(
        "table.monitoring.startup.polling.limit.ms",
        "how long to wait for the list of tables",
        "the source begins with the list",
    ),
    honoured(
        "query",
        "a SELECT in place of tables, masked if it has placeholders; the topic is topic.prefix alone",
        None,
        text,
    ),
    honoured("query.masked", "the same, never shown by validate", None, text, secret=True),
)
"""Keys that say which tables are polled, or which query."""

_POLLING: tuple[Setting, ...] = (
    moot("transaction.isolation.mode", "isolation of a poll", "each poll reads one snapshot"),
    moot("poll.linger.ms", "how long an empty poll waits", "an empty poll sends nothing"),
    moot("max.buffer.size", "rows held in memory", "batch.max.rows and 8 MiB a page limit them"),
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
"""Keys that say how changed rows are found, and when."""

_RECORDS: tuple[Setting, ...] = (
    honoured("numeric.mapping", "how NUMERIC columns become numbers", "none", member_of(NumericMapping)),
    honoured("numeric.precision.mapping", "older form of numeric.mapping: true is precision_only", "false", boolean),
    honoured("timestamp.granularity", "how timestamps become values", "connect_logical", member_of(Granularity)),
    honoured("db.timezone", "time zone of timestamps without one", "UTC", read_zone),
    honoured(
        "date.calendar.system",
        "calendar of days before 1582-10-15: that of java.util",
        "LEGACY",
        one_of("LEGACY", otherwise="days before 1582-10-15 are Julian; keep them as text, by a view that casts them"),
    ),
    honoured(
        "compactory.types",
        "column types: those that the real connector supports, or all",
        "connector",
        member_of(ColumnTypes),
    ),
    honoured(
        "key.converter", "class that writes keys", "org.apache.kafka.connect.storage.StringConverter", required_text
    ),
    honoured("key.converter.*", "options of the key's converter"),
    honoured(
        "value.converter", "class that writes values", "org.apache.kafka.connect.json.JsonConverter", required_text
    ),
    honoured("value.converter.*", "options of the value's converter"),
    refused("header.converter", "class that writes headers", _NO_HEADERS),
    refused("header.converter.*", "options of the header's converter", _NO_HEADERS),
    honoured("transforms", "aliases of the transforms, in order, separated by commas", "", names),
    honoured("transforms.*", "class and options of a transform"),
    honoured("predicates", "aliases of the conditions of transforms, separated by commas", "", names),
    honoured("predicates.*", "class and options of a condition"),
    honoured("compactory.transform", "a Python function after the transforms: module:function", None, required_text),
    moot("errors.retry.timeout", "how long a failed operation is tried again", "conversions have nothing to wait for"),
    moot("errors.retry.delay.max.ms", "pause between tries", "conversions have nothing to wait for"),
    refused("errors.deadletterqueue.*", "topic of failed records", "Kafka Connect has it for sinks only; leave it out"),
)
"""Keys that say what a row becomes: column types, converters, transforms, errors."""

_TOPICS: tuple[Setting, ...] = (
    honoured("topic.creation.default.partitions", "partitions of a new topic; -1: the broker's default", "-1", _COUNT),
    honoured(
        "topic.creation.default.replication.factor", "replicas of a new topic; -1: the broker's default", "-1", _COUNT
    ),
    honoured("topic.creation.default.*", "configuration of a new topic, such as min.insync.replicas"),
    refused(
        "topic.creation.*",
        "groups of topics with a configuration of their own",
        "a connector's new topics are alike; create the others yourself: compactory topic create",
    ),
    honoured("producer.override.*", "producer properties by their Java names, or librdkafka's"),
    refused("consumer.override.*", "consumer properties", "a source consumes nothing; leave it out"),
    refused(
        "admin.override.*", "admin client properties", "one client serves all; give them in [kafka] of compactory.toml"
    ),
    honoured(
        "exactly.once.support",
        "whether exactly once is required",
        "requested",
        one_of("requested", "required", otherwise="for at-least-once set compactory.transactions=off"),
    ),
    moot(
        "transaction.boundary",
        "when transactions end",
        "a transaction ends after a batch",
        one_of("poll", otherwise="only poll"),
    ),
    refused("transaction.boundary.interval.ms", "time between commits", "transactions end after a batch; leave it out"),
    refused(
        "offsets.storage.topic", "topic of this connector's offsets", "offsets are in compactory-offsets; leave it out"
    ),
)
"""Keys about topics, producers and transactions."""

SETTINGS: tuple[Setting, ...] = (
    *options_of(ConnectorConfig),
    *_CONNECTION,
    *_TABLES,
    *options_of(CursorColumns),
    *_POLLING,
    *_RECORDS,
    *options_of(ErrorPolicy),
    *_TOPICS,
)
