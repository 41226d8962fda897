"""A publisher on real Kafka: what it makes of refusals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from compactory.errors import CompactoryError
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher, TopicRefused
from tests.stack.apache_kafka import ApacheKafka


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


def test_what_a_topic_refused_is_said_once(own_kafka: ApacheKafka, unique: Callable[[str], str]) -> None:
    """Guarantee 12: a publisher that could not undo a transaction says that it can't go on, not why that failed."""
    topic, client = unique("topic"), Kafka(own_kafka.address)
    client.create_topic(topic, partitions=1, config={})
    records, quick = [(b"k", b"1")], {"message.timeout.ms": 1000}
    with closing(Publisher(client, unique("publisher"), topic, overrides=quick)) as publisher:
        publisher.open()
        publisher.publish(topic, records, records[0])
        own_kafka.freeze()
        with pytest.raises(TopicRefused, match="Message timed out"):
            publisher.publish(topic, records, records[0])
        own_kafka.thaw()
        assert not publisher.usable
        with pytest.raises(CompactoryError) as told:
            publisher.publish(topic, records, records[0])
    assert not isinstance(told.value, TopicRefused)
