"""Publishes one key again and again, each value with the time: ``stamping KAFKA TOPIC COUNT``.

Whoever sees a value knows how long it took: ``time.monotonic_ns`` is one clock for all processes of a machine. The
producer's settings are those of a careful writer: acks=all, idempotent, no lingering.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from statistics import quantiles

import orjson
from confluent_kafka import Producer

__all__ = ["KEY", "percentiles", "stamped"]

KEY = "0"
_PAUSE = 0.01  # seconds between two values


def stamped(stamp: int) -> dict[str, object]:
    """Return a value that holds a stamp, as long as the others."""
    return {"id": 0, "terminalId": "T0000000", "acquirerId": "A000", "isActive": True, "stamp": stamp}


def percentiles(taken: Sequence[float], name: str) -> dict[str, float]:
    """Return p50 and p99 of milliseconds, the first tenth left out."""
    cuts = quantiles(taken[len(taken) // 10 :], n=100)
    return {f"{name}_p50_ms": cuts[49], f"{name}_p99_ms": cuts[98]}


def main() -> None:
    kafka, topic, count = sys.argv[1:]
    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    producer.list_topics(topic, timeout=10)
    for _ in range(int(count)):
        producer.produce(topic, orjson.dumps(stamped(time.monotonic_ns())), KEY)
        producer.flush()
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
