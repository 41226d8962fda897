"""``compactory verify --repair``: rows sent again by the running source, or by this process."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactory.kafka.client import Kafka
    from compactory_connectors.source.config.connector import ConnectorConfig
    from compactory_connectors.source.verify.checker import Outcome

    from ..context.configuration import Configuration

__all__ = ["Repairs"]

_MOST_KEYS = 10_000  # of one request
_PAUSE = 0.5  # seconds between two comparisons while a source repairs


class Repairs:
    """Repairs of one run; ``sent`` counts keys. Values go from Postgres to Kafka only."""

    def __init__(self, configuration: Configuration, kafka: Kafka, url: str | None) -> None:
        self._configuration = configuration
        self._kafka = kafka
        self._url = url or configuration.url
        self._is_waiting = False
        self.sent = 0

    def run(self, connector: ConnectorConfig, outcomes: Sequence[Outcome], *, approved: bool) -> None:
        """Send every differing key again. Raises ConfigError, StepFailed, LeaseLost, Unreachable."""
        from compactory_connectors.source.runtime.repair import refuse_repair, repair

        refuse_repair(connector, outcomes, approved=approved)
        for outcome in outcomes:
            keys = [difference.key for difference in outcome.differences]
            if not keys:
                continue
            if outcome.sources:
                self._ask_source(connector, outcome, keys)
            else:
                repair(connector, self._kafka, outcome.tables[0], keys)
            self.sent += len(keys)

    def settled(self, compare: Callable[[], list[Outcome]], wait: float) -> list[Outcome]:
        """Compare again, for up to ``wait`` seconds if a running source does the repair."""
        deadline = time.monotonic() + wait
        outcomes = compare()
        while self._is_waiting and any(outcome.different for outcome in outcomes) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            outcomes = compare()
        return outcomes

    def _ask_source(self, connector: ConnectorConfig, outcome: Outcome, keys: list[bytes]) -> None:
        from compactory.errors import ConfigError

        if self._url is None:
            raise ConfigError(
                f"a source of {connector.name!r} runs and has to do the repair: {'; '.join(outcome.sources)};"
                " give --url with the address that its --listen has, or stop it first"
            )
        server = self._configuration.server(self._url, orders=True)
        for start in range(0, len(keys), _MOST_KEYS):
            page = [base64.b64encode(key).decode() for key in keys[start : start + _MOST_KEYS]]
            server.order(connector.name, "resend", table=outcome.tables[0], document={"keys_base64": page})
        self._is_waiting = True
