"""A cluster of three brokers for a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import needs_apache_kafka
from tests.stack.kafka_cluster import KafkaCluster


@pytest.fixture
def three() -> Iterator[KafkaCluster]:
    needs_apache_kafka()
    cluster = KafkaCluster(3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()
