"""``compactory verify --spark``: compares tables, stores and exported files with their topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from compactory.errors import CompactoryError, ConfigError

from ..context.remote import RemoteServer
from ..context.session import all_of
from ..views.verify_view import exit_code_of_outcomes, progress, show_outcomes
from .comparison import Comparison

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.verify.outcome import Outcome, Progress
    from compactory_connectors.spark.session import SparkOptions
    from compactory_connectors.spark.verification.side import SideOutcome

    from ..context.configuration import Configuration
    from ..context.settings_file import DirectorySettings

__all__ = ["SparkComparison"]

_PATIENCE = 600.0  # seconds that a store may take to compute its digest


@dataclass(frozen=True, kw_only=True)
class SparkComparison(Comparison):
    """The arguments of a comparison on Spark, and the comparison."""

    configuration: Configuration
    stores: Sequence[str]
    exports: Sequence[str]
    options: SparkOptions

    @property
    def _settings(self) -> DirectorySettings | None:
        return self.configuration.directories.get(self.target)

    def run(self, *, values: bool, as_json: bool) -> None:
        """Compare and print the outcomes. Raises ConfigError with all problems, typer.Exit unless all is equal."""
        from compactory_connectors.spark.failures import spark_failures

        with progress() as report, spark_failures():
            tables, sides = self._compared(report)
        show_outcomes(tables, limit=self.limit, values=values, as_json=as_json, sides=sides)
        if code := exit_code_of_outcomes(tables, sides):
            raise typer.Exit(code)

    def _compared(self, progress: Progress) -> tuple[list[Outcome], list[SideOutcome]]:
        """Return the outcomes of the tables, and of stores and exports."""
        connectors, kafka = all_of(self._connectors, self.configuration.kafka)
        from compactory_connectors.spark.session import session

        progress("starting Spark", 0)
        with session(f"compactory verify {Path(self.target).name}", self.options) as spark:
            topic = self._settings.directory.topic if self._settings is not None else None
            compared = [self.of(connector, kafka, topic, progress, digests=True) for connector in connectors]
            tables = [*chain.from_iterable(compared)]
            sides = self._sides(spark, kafka, self._topic(tables), progress) if self.stores or self.exports else []
        return tables, sides

    def _connectors(self) -> list[ConnectorConfig]:
        """Return the connectors to compare; an empty list if only stores and exports are compared."""
        from ..context.loading import load_connectors

        settings = self._settings
        path = settings.connector if settings is not None else Path(self.target)
        if path is not None and path.suffix in {".json", ".properties"}:
            return load_connectors([path], self.provider or ())
        if self.stores or self.exports:
            return []
        raise ConfigError(
            f"nothing to compare {self.target!r} with: it has no connector and so no table; give --store or"
            f' --export, or write connector = "FILE.json" into [directories.{self.target}] of compactory.toml'
        )

    def _topic(self, tables: Sequence[Outcome]) -> str:
        """Return the topic that stores and exports are compared with."""
        if self._settings is not None:
            return self._settings.directory.topic
        topics = [outcome.topic for outcome in tables] or [self.target]
        if len(topics) > 1:
            raise ConfigError(
                f"the connector publishes to {', '.join(topics)}: name one directory in place of the connector to"
                " compare it with --store or --export"
            )
        return topics[0]

    def _sides(self, spark: SparkSession, kafka: Kafka, topic: str, progress: Progress) -> list[SideOutcome]:
        from compactory_connectors.spark.verification.export_side import compare_export
        from compactory_connectors.spark.verification.store_side import compare_store
        from compactory_connectors.spark.verification.topic_states import TopicStates

        outcomes: list[SideOutcome] = []
        with TopicStates(spark, kafka, topic) as states:
            for url in self.stores:
                store = self.configuration.server(url, timeout=_PATIENCE)
                name = self._name(store, topic)
                outcomes.append(compare_store(states, store, name, wait=self.wait, most=self.limit, progress=progress))
            outcomes += [
                compare_export(states, kafka, path, most=self.limit, progress=progress) for path in self.exports
            ]
        return outcomes

    def _name(self, store: RemoteServer, topic: str) -> str:
        """Return the directory's name in a store: the target, or its only directory of this topic."""
        try:
            names = [directory["name"] for directory in store.directories() if directory["topic"] == topic]
        except CompactoryError:
            return self.target  # the comparison says so, and goes on with the other stores
        return self.target if self.target in names or len(names) != 1 else str(names[0])
