"""Keys about the connector itself and its connection to Postgres."""

from __future__ import annotations

from ...setting import Setting, at_least, boolean, honoured, moot, names, one_of, refused, required_text

__all__ = ["KEYS"]

KEYS: tuple[Setting, ...] = (
    honoured(
        "name", "name of the connector: its offsets, lease and transactional id", "the file's stem", required_text
    ),
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
    moot("header.converter.plugin.version", "version of the converter to load", "nothing is loaded"),
    moot("tasks.max", "number of tasks", "one process polls all tables of a connector", at_least(1)),
    moot("tasks.max.enforce", "fail above tasks.max", "there is one task", boolean),
    honoured(
        "connection.url", "JDBC URL of a Postgres database, or a postgresql:// URL", None, required_text, secret=True
    ),
    honoured("connection.user", "user, where the URL has none"),
    honoured("connection.password", "password, where the URL has none", secret=True),
    moot("connection.attempts", "attempts to connect", "an outage is waited out, however long it lasts", at_least(1)),
    moot(
        "connection.backoff.ms",
        "pause between attempts",
        "attempts are spaced by exponential back-off with jitter, 10 s at the most",
        at_least(0),
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
    honoured(
        "quote.sql.identifiers",
        "never: names of tables and columns that are not in double quotes are read in lower case",
        "always",
        one_of("always", "ALWAYS", "never", "NEVER"),
    ),
    honoured(
        "transaction.isolation.mode",
        "isolation of a poll: REPEATABLE_READ, which is more than the weaker ones promise, or SERIALIZABLE",
        "DEFAULT",
        one_of(
            "DEFAULT",
            "READ_UNCOMMITTED",
            "READ_COMMITTED",
            "REPEATABLE_READ",
            "SERIALIZABLE",
            otherwise="Postgres has no other",
        ),
    ),
    moot("config.action.reload", "what changed placeholders do", "they are read at start", one_of("restart", "none")),
    honoured("config.providers", "names of the providers of placeholders", "", names),
    honoured("config.providers.*", "class and parameters of a provider"),
)
