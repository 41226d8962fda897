"""The table of connector keys: what each means, its default, what it accepts and why a key is refused.

The names are those of the Confluent JDBC source connector and of Kafka Connect. Every key that they know is here, so
that none is ever ignored: it is HONOURED, MOOT (accepted, because nothing it could change exists here; the note says
why) or REFUSED (the note says why and what to do). Documentation is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .setting import Setting, Status, at_least, boolean, names, nearest, one_of, required_text, switch, text

__all__ = ["SETTINGS", "find_setting", "unknown_key"]


def _honoured(
    name: str,
    meaning: str,
    default: str | None = None,
    parse: Callable[[str], Any] = text,
    *,
    secret: bool = False,
) -> Setting:
    return Setting(name=name, meaning=meaning, default=default, parse=parse, secret=secret)


def _moot(name: str, meaning: str, note: str, parse: Callable[[str], Any] = text) -> Setting:
    return Setting(name=name, meaning=meaning, parse=parse, status=Status.MOOT, note=note)


def _refused(name: str, meaning: str, note: str) -> Setting:
    return Setting(name=name, meaning=meaning, status=Status.REFUSED, note=note)


_POLL = "the source reads every poll in one REPEATABLE READ transaction"
_CLASSES = "Java classes can't be loaded"

SETTINGS: tuple[Setting, ...] = (
    _honoured(
        "name", "name of the connector: its offsets, lease and transactional id", "the file's stem", required_text
    ),
    _honoured(
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
    _moot("tasks.max", "number of tasks", "one process polls all tables of a connector", at_least(1)),
    _moot("tasks.max.enforce", "fail above tasks.max", "there is one task", boolean),
    _honoured(
        "connection.url", "JDBC URL of a Postgres database, or a postgresql:// URL", None, required_text, secret=True
    ),
    _honoured("connection.user", "user, where the URL has none"),
    _honoured("connection.password", "password, where the URL has none", secret=True),
    _moot("connection.attempts", "attempts to connect", "an outage is waited out, however long it lasts", at_least(1)),
    _moot(
        "connection.backoff.ms",
        "pause between attempts",
        "attempts are spaced by exponential back-off with jitter",
        at_least(0),
    ),
    _refused("connection.oauth2.*", "token based login", "not supported; give connection.user and connection.password"),
    _refused("jdbc.credentials.provider.*", "class that gives credentials", f"{_CLASSES}; use a placeholder"),
    _honoured(
        "dialect.name",
        "dialect of SQL",
        "PostgreSqlDatabaseDialect",
        one_of("PostgreSqlDatabaseDialect", "", otherwise="only Postgres is supported"),
    ),
    _honoured("table.whitelist", "tables to poll, [schema.]table, separated by commas", None, names),
    _refused(
        "table.include.list", "patterns of tables to poll", "not supported yet; name the tables in table.whitelist"
    ),
    _refused(
        "table.exclude.list", "patterns of tables not to poll", "not supported yet; name the tables in table.whitelist"
    ),
    _refused("table.blacklist", "tables not to poll", "not supported yet; name the tables in table.whitelist"),
    _refused("schema.pattern", "schemas to look in", "not supported yet; write schema.table in table.whitelist"),
    _refused("catalog.pattern", "catalogs to look in", "a Postgres connection sees one database; leave it out"),
    _honoured(
        "table.types",
        "kinds of relation to poll",
        "TABLE",
        one_of("TABLE", "table", otherwise="views have no row versions and are not supported yet"),
    ),
    _moot(
        "table.poll.interval.ms", "how often to look for new tables", "table.whitelist names every table", at_least(1)
    ),
    _moot(
        "table.monitoring.startup.polling.limit.ms",
        "how long to wait for the list of tables",
        "table.whitelist names every table",
        at_least(0),
    ),
    _refused("query", "a query in place of a table", "not supported yet; poll the table itself"),
    _honoured(
        "query.suffix", "text after the generated query", "", one_of("", otherwise="not supported yet; leave it out")
    ),
    _moot("query.masked", "hide queries in logs", "values never appear in logs", boolean),
    _moot("query.retry.attempts", "how often a failed query is tried again", "an outage is waited out", at_least(-1)),
    _honoured("mode", "how changed rows are found", None, required_text),
    _honoured("incrementing.column.name", "column that grows with every new row"),
    _honoured("timestamp.column.name", "column that holds the time of the row's last change", None, names),
    _refused(
        "incrementing.column.mapping", "incrementing column by table", "not supported yet; use incrementing.column.name"
    ),
    _refused("timestamp.columns.mapping", "timestamp columns by table", "not supported yet; use timestamp.column.name"),
    _refused("timestamp.initial", "time to start from", "not supported yet; leave it out, and every row is sent first"),
    _honoured(
        "timestamp.delay.interval.ms",
        "how long to wait for late commits",
        "0",
        one_of("0", otherwise="no delay is needed: late commits are found by row version; leave it out"),
    ),
    _honoured("validate.non.null", "refuse nullable incrementing and timestamp columns", "true", boolean),
    _honoured("poll.interval.ms", "milliseconds between two polls of a table", "5000", at_least(1)),
    _moot("poll.linger.ms", "how long an empty poll waits", "an empty poll sends nothing", at_least(0)),
    _honoured("batch.max.rows", "most rows of one Kafka transaction; 10,000 at the most", "10000", at_least(1)),
    _moot("max.buffer.size", "rows held in memory", "batch.max.rows bounds them", at_least(0)),
    _honoured("topic.prefix", "the topic of a table is this and the table's name", None, text),
    _honoured(
        "numeric.mapping",
        "how NUMERIC columns become numbers",
        "none",
        one_of("none", otherwise="the other mappings are not supported yet"),
    ),
    _honoured(
        "numeric.precision.mapping",
        "older form of numeric.mapping",
        "false",
        one_of("false", otherwise="mapping by precision is not supported yet"),
    ),
    _honoured(
        "timestamp.granularity",
        "how timestamps become values",
        "connect_logical",
        one_of("connect_logical", otherwise="the other granularities are not supported yet"),
    ),
    _honoured(
        "db.timezone",
        "time zone of timestamps without one",
        "UTC",
        one_of("UTC", otherwise="other zones are not supported yet"),
    ),
    _honoured(
        "date.calendar.system",
        "calendar of dates before 1582-10-15",
        "LEGACY",
        one_of("LEGACY", otherwise="the proleptic calendar is not supported yet"),
    ),
    _honoured(
        "quote.sql.identifiers",
        "when names in SQL are quoted",
        "always",
        one_of("always", "ALWAYS", otherwise="names are always quoted; write them as they are in the catalogue"),
    ),
    _honoured(
        "transaction.isolation.mode",
        "isolation of a poll",
        "DEFAULT",
        one_of("DEFAULT", "REPEATABLE_READ", otherwise=_POLL),
    ),
    _honoured(
        "key.converter", "class that writes keys", "org.apache.kafka.connect.storage.StringConverter", required_text
    ),
    _honoured("key.converter.*", "options of the key's converter"),
    _honoured(
        "value.converter", "class that writes values", "org.apache.kafka.connect.json.JsonConverter", required_text
    ),
    _honoured("value.converter.*", "options of the value's converter"),
    _moot("header.converter", "class that writes headers", "records have no headers"),
    _moot("header.converter.*", "options of the header's converter", "records have no headers"),
    _honoured("transforms", "aliases of the transforms, in order, separated by commas", "", names),
    _honoured("transforms.*", "class and options of a transform"),
    _refused("predicates", "conditions of transforms", "not supported yet; leave out the transforms that need them"),
    _refused("predicates.*", "conditions of transforms", "not supported yet; leave out the transforms that need them"),
    _moot(
        "topic.creation.enable",
        "create topics",
        "run with --no-create-topics not to",
        one_of("true", otherwise="run with --no-create-topics instead"),
    ),
    _honoured(
        "topic.creation.default.partitions",
        "partitions of a new topic; -1: the broker's default",
        "-1",
        at_least(1, also=-1),
    ),
    _honoured(
        "topic.creation.default.replication.factor",
        "replicas of a new topic; -1: the broker's default",
        "-1",
        at_least(1, also=-1),
    ),
    _honoured("topic.creation.default.*", "configuration of a new topic, such as min.insync.replicas"),
    _refused("topic.creation.groups", "groups of topics", "not supported yet; use topic.creation.default.*"),
    _refused(
        "topic.creation.*", "configuration of a group of topics", "not supported yet; use topic.creation.default.*"
    ),
    _honoured("producer.override.*", "producer properties"),
    _refused("consumer.override.*", "consumer properties", "a source consumes nothing; leave it out"),
    _refused(
        "admin.override.*", "admin client properties", "not supported yet; give them in [kafka] of compactory.toml"
    ),
    _honoured(
        "errors.tolerance",
        "what a row that can't be converted does",
        "none",
        one_of("none", otherwise="skipping rows is not supported yet"),
    ),
    _moot("errors.log.enable", "log errors", "every error is logged", boolean),
    _moot("errors.log.include.messages", "log the record of an error", "values never appear in logs", boolean),
    _moot(
        "errors.retry.timeout",
        "how long a failed operation is tried again",
        "conversions have nothing to wait for",
        at_least(-1),
    ),
    _moot("errors.retry.delay.max.ms", "pause between tries", "conversions have nothing to wait for", at_least(0)),
    _refused(
        "errors.deadletterqueue.*", "topic of failed records", "Kafka Connect has it for sinks only; leave it out"
    ),
    _honoured(
        "exactly.once.support",
        "whether exactly once is required",
        "requested",
        one_of("requested", "required", otherwise="for at-least-once set compactory.transactions=off"),
    ),
    _moot(
        "transaction.boundary",
        "when transactions end",
        "a transaction ends after a batch",
        one_of("poll", otherwise="only poll"),
    ),
    _refused(
        "transaction.boundary.interval.ms", "time between commits", "transactions end after a batch; leave it out"
    ),
    _refused(
        "offsets.storage.topic", "topic of this connector's offsets", "offsets are in compactory-offsets; leave it out"
    ),
    _moot("config.action.reload", "what changed placeholders do", "they are read at start", one_of("restart", "none")),
    _honoured("config.providers", "names of the providers of placeholders", "", names),
    _honoured("config.providers.*", "class and parameters of a provider"),
    _honoured(
        "compactory.soft.delete.column", "boolean column; a row in which it is false is deleted", None, required_text
    ),
    _honoured(
        "compactory.soft.delete.mode",
        "a deleted row is sent as a tombstone, or as its value",
        "tombstone",
        one_of("tombstone", "value"),
    ),
    _honoured(
        "compactory.transactions", "records and offset in one Kafka transaction; off: at least once", "on", switch
    ),
)

_EXACT: Mapping[str, Setting] = {item.name: item for item in SETTINGS if not item.name.endswith(".*")}
_PREFIXES: tuple[tuple[str, Setting], ...] = tuple(
    (item.name[:-1], item) for item in SETTINGS if item.name.endswith(".*")
)


def find_setting(key: str) -> Setting | None:
    """The entry of ``key``, exact before prefix, the first prefix that fits; None when the key is unknown."""
    if key in _EXACT:
        return _EXACT[key]
    return next((item for prefix, item in _PREFIXES if key.startswith(prefix) and key != prefix), None)


def unknown_key(key: str) -> str:
    """The problem text of a key that is not in the table."""
    return f"{key}: unknown key{nearest(key, _EXACT)}"
