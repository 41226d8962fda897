"""A publisher on real Kafka: what it makes of refusals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from compactory.kafka.client import Kafka
from compactory_connectors.topics.publisher import Publisher, TopicRefused


def test_a_refusal_is_told_although_more_records_were_produced(kafka: str, unique: Callable[[str], str]) -> None:
    """Guarantee 12: once a transaction has failed, the client takes no record and says no more than that."""
    topic, client = unique("topic"), Kafka(kafka)
    client.create_topic(topic, partitions=1, config={})

    def send(producer: Any) -> None:
        producer.produce("__transaction_state", b"1", b"k")  # where no client may write
        for _ in range(5_000):
            producer.produce(topic, b"2", b"k")
            producer.poll(0.001)

    with closing(Publisher(client, unique("publisher"), topic)) as publisher:
        publisher.open()
        with pytest.raises(TopicRefused, match="Topic authorization failed"):
            publisher.transact(send)
