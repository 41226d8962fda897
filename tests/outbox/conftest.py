"""Topics and a migrated database for outboxes; relays that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compactory.kafka.client import Kafka
from compactory_connectors.outbox import relay, statements
from tests.outbox.harness import Bench


@pytest.fixture
def bench(migrated: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    """An outbox on the run's Postgres and Kafka."""
    bench = Bench(migrated, Kafka(kafka), kafka, unique)
    yield bench
    bench.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks run out after a second, and topics with an error are tried again after one."""
    for module in (relay, statements):
        monkeypatch.setattr(module, "TTL", 1.0)
        monkeypatch.setattr(module, "PAUSE", 1.0)
    monkeypatch.setattr(relay, "_RENEW_EVERY", 0.2)
