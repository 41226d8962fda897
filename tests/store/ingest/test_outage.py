"""Guarantee 7: outages are not fatal. Once ready, a store answers whatever happens to Kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactory import GlobalStore, Unreachable, WaitTimeout
from compactory.kafka.client import Kafka
from compactory.records import Partition
from tests.stack.apache_kafka import ApacheKafka
from tests.store.topics import Topics, eventually


@pytest.mark.proof
def test_a_store_outlives_its_broker(own_kafka: ApacheKafka, unique: Callable[[str], str]) -> None:
    """Guarantee 7: lookups and readiness stay; waits say what is wrong; reading goes on when Kafka is back."""
    topics = Topics(own_kafka.address, unique)
    name = topics.create()
    topics.commit(name, ("a", '{"n":1}'))
    idle, partition = Kafka(own_kafka.address), Partition(name, 0)
    first_ends = idle.high_watermarks([partition])
    with GlobalStore(own_kafka.address, [name]) as store:
        own_kafka.kill()
        with pytest.raises((Unreachable, WaitTimeout)):
            store.barrier(timeout=3)
        assert store.ready
        assert store[name]["a"] == {"n": 1}
        assert store.lag()
        own_kafka.start()
        (token,) = Topics(own_kafka.address, unique).commit(name, ("a", '{"n":2}'))
        store.wait_for(token, timeout=60)
        assert store[name]["a"] == {"n": 2}
        eventually(lambda: set(store.lag().values()) == {0})
        assert idle.high_watermarks([partition], timeout=30) != first_ends  # although the leader's epoch is another now
