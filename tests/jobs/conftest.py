"""A migrated database for jobs; executors that end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compactory_connectors.jobs import membership, upkeep
from tests.jobs.harness import Bench


@pytest.fixture
def bench(migrated: str) -> Iterator[Bench]:
    """Jobs in the run's Postgres."""
    bench = Bench(migrated)
    yield bench
    bench.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors are taken for dead after a second; their jobs come back at once."""
    monkeypatch.setattr(membership, "TTL", 1.0)
    monkeypatch.setattr(membership, "SPREAD", 0.1)
    monkeypatch.setattr(upkeep, "_BEAT_EVERY", 0.2)
