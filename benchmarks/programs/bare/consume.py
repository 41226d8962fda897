"""A bare loop that fills a dict, the yardstick: ``bare.consume BOOTSTRAP TOPIC [reads]``.

Same client properties and collector setting as the store has while it loads; no decoding, no positions, no offsets, no
ends of transactions, no errors.
"""

from __future__ import annotations

import gc
import json
import sys

import orjson
from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.programs.reading import Clock, memory, reads
from compactory.kafka.client import _PROFILES  # a private name, so that the two can't drift apart


def main() -> None:
    bootstrap, topic, *options = sys.argv[1:]
    gc.disable()
    clock = Clock()
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bare", "enable.auto.commit": False, **_PROFILES["load"]}
    )
    numbers = consumer.list_topics(topic, timeout=5).topics[topic].partitions
    partitions = [TopicPartition(topic, number, 0) for number in numbers]
    expected = sum(consumer.get_watermark_offsets(partition, timeout=5)[1] for partition in partitions)
    consumer.assign(partitions)
    entries: dict[bytes | None, bytes | None] = {}
    messages: list[Message] = []
    read = 0
    while read < expected:
        messages = consumer.consume(20_000, 0.1)
        read += len(messages)
        for message in messages:
            entries[message.key()] = message.value()
    messages.clear()
    figures = clock.figures() | memory() | {"entries": len(entries)}
    if options:
        figures["rate"] = reads(lambda key: orjson.loads(entries[key.encode()] or b""), len(entries))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
