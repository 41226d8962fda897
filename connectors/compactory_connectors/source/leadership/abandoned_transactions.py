"""A transaction that an earlier holder of the lease left open: nobody reads the offsets to their end while it is.

Kafka would end it by itself, after its time-out and up to 10 s more, as that often brokers look
(``transaction.abort.timed.out.transaction.cleanup.interval.ms``).
"""

from __future__ import annotations

from contextlib import closing

from compactory.kafka.client import Kafka
from compactory.records import Partition

from ..config.connector import ConnectorConfig
from ..publish.publisher import Publisher, PublishGuard
from ..publish.topics import OFFSETS_TOPIC

__all__ = ["end_abandoned"]


def end_abandoned(connector: ConnectorConfig, kafka: Kafka, publish_guard: PublishGuard) -> None:
    """Take the transactional id over, which aborts what is open under it, if anything is open in the offsets topic.

    To be called by the holder of the lease, before it reads there. Raises LeaseLost, Unreachable, ConfigError.
    """
    place = [Partition(OFFSETS_TOPIC, 0)]
    if not connector.transactions or OFFSETS_TOPIC not in kafka.topics([OFFSETS_TOPIC]):
        return
    if kafka.stable_offsets(place) == kafka.high_watermarks(place):
        return
    with closing(Publisher.of(connector, kafka, publish_guard)) as publisher:
        publisher.open()
