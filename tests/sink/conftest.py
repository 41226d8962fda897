"""Topics and a migrated database for sinks, which end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compactory.kafka.client import Kafka
from tests.sink.harness import Bench


@pytest.fixture
def bench(migrated: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    """A sink's database and topics on the run's Postgres and Kafka."""
    bench = Bench(migrated, Kafka(kafka), kafka, unique)
    yield bench
    bench.close()
