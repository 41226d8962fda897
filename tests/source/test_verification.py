"""A topic beside its table, while both change: no false alarm, and every true difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from compactory_connectors.source.planning import plan_tables
from compactory_connectors.source.server import Server
from compactory_connectors.source.verification.outcome import Outcome
from compactory_connectors.source.verification.verifier import Options, Verifier
from tests.source.conftest import Bench


@pytest.fixture
def bench(database: str, kafka: str, unique: Callable[[str], str]) -> Iterator[Bench]:
    bench = Bench(database, kafka, f"{unique('v')}.")
    yield bench
    bench.close()


def verified(bench: Bench, *, wait: float = 10.0, digests: bool = False, **changes: Any) -> Outcome:
    """Compare the bench's table and topic."""
    connector = bench.connector(**changes)
    server = Server.open(connector.connection.conninfo)
    try:
        plans = plan_tables(server, connector)
        options = Options(wait=wait, digests=digests)
        return Verifier(connector, bench.kafka, server, plans, options).run(bench.topic)
    finally:
        server.close()


def send(bench: Bench, key: bytes, value: bytes | None, **places: Any) -> None:
    """A record by somebody else."""
    producer = Producer({**bench.kafka.properties(), "partitioner": "murmur2_random"})
    producer.produce(bench.topic, value, key, **places)
    assert producer.flush(10) == 0


def test_equal(bench: Bench) -> None:
    bench.add("T1", "T2", "T3")
    bench.once()
    found = verified(bench)
    assert found.equal, found
    assert (found.expected, found.stored) == (3, 3)
