"""The topics of the benchmarks: terminals as JSON of some 110 bytes, lz4, the key a number in decimal."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from compactory.kafka.client import Kafka

__all__ = ["VALUE", "append", "filled", "value"]

VALUE = b'{"id":%d,"terminalId":"T%07d","acquirerId":"A%03d","isActive":true,"updatedDate":"2024-01-01 11:11:11.000"}'
_PRODUCER = {"compression.type": "lz4", "linger.ms": 50, "acks": "all", "enable.idempotence": True, "log_level": 3}


def value(number: int) -> bytes:
    """Return the value of a key."""
    return VALUE % (number, number, number % 500)


def filled(address: str, entries: int, partitions: int, purpose: str = "") -> str:
    """Return a topic with that many terminals, made where it does not exist or was left half full."""
    topic = f"bench-{entries}-{partitions}{'-' * bool(purpose)}{purpose}"
    kafka = Kafka(address)
    config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 30)}
    if kafka.create_topic(topic, partitions=partitions, config=config) or _records(address, topic) < entries:
        append(address, topic, entries)
    return topic


def append(address: str, topic: str, records: int) -> None:
    """Write so many terminals, from number 0 on; return when all are acknowledged."""
    producer = Producer({"bootstrap.servers": address, **_PRODUCER})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value(number), b"%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _records(address: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench"})
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = (consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10) for number in numbers)
        return sum(end for _, end in ends)
    finally:
        consumer.close()
