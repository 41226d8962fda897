"""Writes changes to a topic until it is ended: ``changes KAFKA TOPIC RATE ENTRIES``."""

from __future__ import annotations

import random
import sys
import time

from confluent_kafka import Producer

from benchmarks.topics import value

if __name__ == "__main__":
    kafka, topic = sys.argv[1:3]
    rate, entries = map(int, sys.argv[3:])
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5, "compression.type": "lz4"})
    producer.list_topics(topic, timeout=10)
    chosen = random.Random(11)
    print("writing", flush=True)
    began, sent = time.perf_counter(), 0
    while True:
        due = int((time.perf_counter() - began) * rate)
        for _ in range(due - sent):
            number = chosen.randrange(entries)
            producer.produce(topic, value(number), b"%d" % number)
        sent = due
        producer.poll(0.01)
