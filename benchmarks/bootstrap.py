"""Bootstrap: a topic of 1,000,000 records of 110 bytes (lz4) becomes a directory in memory, beside a bare loop.

And the article's own case: 50,000 terminals, where its Spring service took 2.51 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from benchmarks.rows import Figures, Row, alternate
from compactory.kafka import Kafka
from tests.stack.apache_kafka import ApacheKafka

RECORDS = 1_000_000
TERMINALS = 50_000
ARTICLE_SECONDS = 2.51
FLOORS = {"apply": 0.6, "read": 0.8, "indexed": 0.35}
NAMES = {"apply": "as it comes", "read": 'validate="read"', "indexed": "active + unique index"}
VALUE = b'{"id":%d,"terminalId":"T%07d","acquirerId":"A%03d","isActive":true,"updatedDate":"2024-01-01 11:11:11.000"}'


def run(rounds: int) -> list[Row]:
    """Measure on the Kafka of ``BENCH_KAFKA``, or on one started for it."""
    with broker() as address:
        rows = [row for partitions in (1, 4) for row in bootstrap(address, partitions, rounds)]
        return [*rows, article(address, rounds)]


def bootstrap(address: str, partitions: int, rounds: int) -> Iterator[Row]:
    topic = filled(address, RECORDS, partitions)
    commands = {"bare": ["benchmarks._bare_consume", address, topic]}
    commands |= {kind: ["benchmarks._store_load", address, topic, kind] for kind in FLOORS}
    taken = alternate(commands, rounds)
    for kind, floor in FLOORS.items():
        assert taken.median(kind, "entries") == RECORDS
        ratio = taken.ratio(kind, "bare")
        yield Row(
            what=f"1 M records, {partitions} partition{'s' * (partitions > 1)}, {NAMES[kind]}",
            figure=described(taken, kind),
            beside=f"bare loop {described(taken, 'bare')}",
            ratio=ratio,
            wanted=f"≥ {floor}",
            met=ratio >= floor,
        )


def described(taken: Figures, name: str) -> str:
    seconds, cpu, peak = (taken.median(name, figure) for figure in ("seconds", "cpu", "peak_mb"))
    return f"{seconds:.2f} s, {RECORDS / seconds / 1e6:.2f} M/s, CPU {cpu:.2f} s, peak {peak:.0f} MB"


def article(address: str, rounds: int) -> Row:
    topic = filled(address, TERMINALS, 1)
    command = ["benchmarks._store_load", address, topic, "apply"]
    seconds = alternate({"ours": command}, rounds).median("ours", "seconds")
    return Row(
        what="50,000 records, start() in all",
        figure=f"{seconds:.3f} s",
        beside=f"the article {ARTICLE_SECONDS} s",
        ratio=ARTICLE_SECONDS / seconds,
        wanted="≤ 0.25 s",
        met=seconds <= 0.25,
    )


@contextmanager
def broker() -> Iterator[str]:
    """Yield the address of a Kafka to measure on."""
    given = os.environ.get("BENCH_KAFKA")
    if given:
        yield given
        return
    server = ApacheKafka()
    try:
        server.start()
        yield server.address
    finally:
        server.remove()


def filled(address: str, records: int, partitions: int) -> str:
    """Return a topic with that many terminals, made where it does not exist."""
    topic = f"bench-{records}-{partitions}"
    if not Kafka(address).create_topic(
        topic, partitions=partitions, config={"cleanup.policy": "compact", "segment.bytes": str(1 << 30)}
    ):
        return topic
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": "lz4",
            "linger.ms": 50,
            "acks": "all",
            "enable.idempotence": True,
        }
    )
    for number in range(records):
        value = VALUE % (number, number, number % 500)
        while True:
            try:
                producer.produce(topic, value, b"%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic
