"""Options of ``compactory verify``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ..context.flags import argument, option
from ..context.loading import Providers

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.verify.outcome import Outcome, Progress

__all__ = ["Comparison"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Options of a comparison."""

    target: Annotated[
        str,
        argument(
            "DIRECTORY | CONNECTOR.json", "A directory of compactory.toml that names its connector, or a connector."
        ),
    ]
    tables: Annotated[list[str] | None, option("--table", "TABLE", "Only this table; may be repeated.")] = None
    provider: Providers = None
    wait: Annotated[float, option("--wait", "SECONDS", "Time that a running source may take to catch up.", min=0)] = (
        30.0
    )
    limit: Annotated[int, option("--limit", "N", "Differing keys to show.", min=0)] = 20

    def of(
        self,
        connector: ConnectorConfig,
        kafka: Kafka,
        topic: str | None,
        progress: Progress,
        *,
        digests: bool,
        most_differences: int | None = None,
    ) -> list[Outcome]:
        """Compare the tables of a connector and keep ``most_differences`` keys, by default those that are shown."""
        from compactory_connectors.source.verify.verifier import Options, verify

        options = Options(wait=self.wait, most_differences=most_differences or max(self.limit, 1), digests=digests)
        return list(verify(connector, kafka, options, tables=self.tables or (), topic=topic, progress=progress))
