"""Where a key goes is the same for us, librdkafka and Java."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from compactory.kafka.client import Kafka
from compactory_connectors.kafka.partitioner import murmur2, partition_of
from compactory_connectors.kafka.topic_reader import read
from tests.stack.apache_kafka import VERSION, jars


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_vectors_of_java(key: bytes, number: int) -> None:
    """Guarantee 10: those of UtilsTest.testMurmur2 in the Kafka client."""
    assert murmur2(key) == number % (1 << 32)


def test_librdkafka_and_java_agree(kafka: str, unique: Callable[[str], str], seeded: random.Random) -> None:
    """Guarantee 10: keys of every length, the empty one included, to a prime number of partitions."""
    topics = {name: unique(name) for name in ("rdkafka", "java")}
    for topic in topics.values():
        Kafka(kafka).create_topic(topic, partitions=13, replication=1, config={"cleanup.policy": "compact"})
    letters = "abcxyzéß€0123456789-_."
    keys = ["", *("".join(seeded.choices(letters, k=length)) for length in range(1, 41) for _ in range(5))]
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topics["rdkafka"], b"1", key.encode())
    assert producer.flush(30) == 0
    _produce_with_java(kafka, topics["java"], keys)
    for topic in topics.values():
        found = {message.key(): message.partition() for message in read(Kafka(kafka), topic)}
        assert found == {key.encode(): partition_of(key.encode(), 13) for key in keys}


def _produce_with_java(kafka: str, topic: str, keys: list[str]) -> None:
    package = "kafka.tools" if VERSION and VERSION < "4" else "org.apache.kafka.tools"
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", f"{jars()}{os.sep}*", f"{package}.ConsoleProducer"]
    command += ["--bootstrap-server", kafka, "--topic", topic, "--property", "parse.key=true"]
    lines = "".join(f"{key}\t1\n" for key in keys)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
