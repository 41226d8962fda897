"""The yardstick of `bootstrap`: a bare loop that fills a dict. ``python -m benchmarks._bare_consume BOOTSTRAP TOPIC``.

Same client properties and collector setting as the store has while it loads; no decoding, no positions, no offsets, no
ends of transactions, no errors.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time

from confluent_kafka import Consumer, TopicPartition


def main() -> None:
    bootstrap, topic = sys.argv[1:]
    gc.disable()
    began, cpu_began = time.perf_counter(), time.process_time()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bare",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 262144,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 8 << 20,
            "fetch.max.bytes": 64 << 20,
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 10,
        }
    )
    numbers = consumer.list_topics(topic, timeout=5).topics[topic].partitions
    partitions = [TopicPartition(topic, number, 0) for number in numbers]
    expected = sum(consumer.get_watermark_offsets(partition, timeout=5)[1] for partition in partitions)
    consumer.assign(partitions)
    entries, read = {}, 0
    while read < expected:
        messages = consumer.consume(20_000, 0.1)
        read += len(messages)
        for message in messages:
            entries[message.key()] = message.value()
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu_began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"entries": len(entries), "seconds": seconds, "cpu": cpu, "peak_mb": peak}))


if __name__ == "__main__":
    main()
