"""The target of a load: the table or topic of a directory in compactory.toml, or of this name.

Slow imports are inside functions: they run while Spark's JVM starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from compactory.directory import Directory
from compactory.errors import ConfigError
from compactory_connectors.spark.into_table.loaded_table import find_table
from compactory_connectors.spark.rules.limit import Limit
from compactory_connectors.spark.rules.rules import Reference, Rules
from compactory_connectors.spark.target import DirectoryServer

from ...context.configuration import Configuration
from ...context.session import Problems, load_connectors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from compactory.kafka.client import Kafka
    from compactory_connectors.postgres.jdbc_url import Connection
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.spark.into_table.to_postgres import PostgresTarget
    from compactory_connectors.spark.into_topic import KafkaTarget

__all__ = ["Aim", "TableAim", "TopicAim", "aim_at", "aims_of_references", "reference_frame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAim:
    """A table of Postgres."""

    connection: Connection
    table: str
    key: Sequence[str] | None
    active: str | None
    limit: Limit | None

    @property
    def label(self) -> str:
        """Return the table's name as it was given."""
        return f"table {self.table}"

    def check(self) -> None:
        """Look the table up, before Spark starts. Raises ConfigError, Unreachable."""
        find_table(self.connection, self.table, self.key, self.active)

    def target(self, _spark: SparkSession, load_id: str, *, is_named: bool) -> PostgresTarget:
        """Return the table as a target, without connecting."""
        from compactory_connectors.spark.into_table.to_postgres import PostgresTarget

        return PostgresTarget(
            connection=self.connection,
            table=self.table,
            key=self.key,
            active=self.active,
            load_id=load_id,
            is_named=is_named,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAim:
    """A topic; of a directory mastered in Kafka with a server that writes it."""

    kafka: Kafka
    directory: Directory[Any]
    rules: Rules
    server: DirectoryServer | None = None
    limit: Limit | None = None

    @property
    def label(self) -> str:
        """Return the topic's name."""
        return f"topic {self.directory.topic}"

    def check(self) -> None:
        """Raise ConfigError where a server has to write the directory, and none is configured."""
        if self.directory.rules is not None and self.server is None:
            raise ConfigError(
                f'directory {self.directory.name!r}: its servers write it (mastered = "kafka"): set COMPACTORY_URL to'
                " one of them, such as http://127.0.0.1:8080, and do not give --kafka"
            )

    def target(self, spark: SparkSession, load_id: str, *, is_named: bool) -> KafkaTarget:  # noqa: ARG002 (as above)
        """Return the topic as a target, without connecting."""
        from compactory_connectors.spark.into_topic import KafkaTarget

        types = {name: str(rule.type) for name, rule in self.rules.columns.items() if rule.type is not None}
        return KafkaTarget(
            spark=spark,
            kafka=self.kafka,
            directory=self.directory,
            types=types,
            key=self.rules.key,
            server=self.server,
            load_id=load_id,
        )


Aim = TableAim | TopicAim


def aim_at(configuration: Configuration, providers: Sequence[str], to: str, name: str, rules: Rules) -> Aim:
    """Return the target of a directory's name. Raises ConfigError with every problem."""
    settings = configuration.directories.get(name)
    if to == "kafka":
        if settings is not None and settings.connector is not None:
            raise ConfigError(f"directory {name!r}: a connector owns its topic: load into its table (--to postgres)")
        directory = settings.directory if settings is not None else _directory_of_topic(configuration, name)
        server = _server(configuration) if directory.rules is not None else None
        return TopicAim(kafka=configuration.kafka(), directory=directory, rules=rules, server=server)
    connector = None
    if settings is not None and settings.connector is not None:
        connector = _connector(name, load_connectors([settings.connector], providers))
    limit = Limit(percent=connector.max_removed_percent) if connector is not None else None
    soft = connector.soft_delete if connector is not None else None
    return TableAim(
        connection=_connection(configuration, connector),
        table=_table_name(name, connector) if connector is not None else name,
        key=rules.key or None,
        active=soft.column if soft is not None else None,
        limit=limit,
    )


def aims_of_references(configuration: Configuration, providers: Sequence[str], rules: Rules) -> dict[str, Aim]:
    """Return the directories that rules refer to. Raises ConfigError for those that compactory.toml lacks."""
    aims: dict[str, Aim] = {}
    problems = Problems()
    for rule in rules.columns.values():
        if rule.reference is None:
            continue
        name = rule.reference.directory
        settings = configuration.directories.get(name)
        if settings is None:
            existing = ", ".join(configuration.directories) or "none"
            problems.add([f"{rule.place}.reference: compactory.toml has no directory {name!r}; it has {existing}"])
            continue
        to = "postgres" if settings.connector is not None else "kafka"
        aim = problems.of(partial(aim_at, configuration, providers, to, name, Rules()))
        aims |= {name: aim} if aim is not None else {}
    problems.raise_any()
    return aims


def reference_frame(aims: Mapping[str, Aim], spark: SparkSession, column: str, reference: Reference) -> DataFrame:
    """Return the values that a reference allows. Raises ConfigError, Unreachable."""
    from compactory_connectors.spark.checking.references import of_table, of_topic

    aim = aims[reference.directory]
    if isinstance(aim, TopicAim):
        return of_topic(spark, aim.kafka, aim.directory, reference.column)
    return of_table(spark, aim.connection, aim.table, reference.column or column, aim.active)


def _directory_of_topic(configuration: Configuration, topic: str) -> Directory[Any]:
    """Return the directory mastered in Kafka whose topic this is; else a plain directory of this name."""
    directories = [settings.directory for settings in configuration.directories.values()]
    mastered = [directory for directory in directories if directory.rules is not None and directory.topic == topic]
    return mastered[0] if mastered else Directory(topic)


def _server(configuration: Configuration) -> DirectoryServer | None:
    tokens = configuration.tokens
    token = tokens.write or tokens.admin or tokens.read
    return DirectoryServer(url=configuration.url, token=token) if configuration.url else None


def _connector(name: str, connectors: Sequence[ConnectorConfig]) -> ConnectorConfig:
    if len(connectors) != 1:
        raise ConfigError(f"directory {name!r}: its file holds {len(connectors)} connectors, and one is expected")
    return connectors[0]


def _connection(configuration: Configuration, connector: ConnectorConfig | None) -> Connection:
    """Return the configured database, else the connector's, whose role may lack the right to write."""
    try:
        return configuration.postgres()
    except ConfigError:
        if connector is None or configuration.names_postgres:
            raise
        return connector.connection


def _table_name(name: str, connector: ConnectorConfig) -> str:
    listed = connector.selection.listed
    if len(listed) == 1 and connector.query is None:
        return str(listed[0])
    fitting = [str(table) for table in listed if connector.topic(table.name) == name or table.name == name]
    if len(fitting) == 1:
        return fitting[0]
    raise ConfigError(
        f"directory {name!r}: connector {connector.name} does not name one table in table.whitelist; give --directory"
        " the table's name"
    )
