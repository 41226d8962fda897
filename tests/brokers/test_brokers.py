"""Clusters of several brokers, of which some are away."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compactory import CompactoryError, GlobalStore, StartTimeout, Unreachable
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.database import Adoption, adopt, install
from compactory_connectors.outbox import Outbox, OutboxRelay
from compactory_connectors.topics.topic_reader import read
from tests.conftest import needs_apache_kafka
from tests.source.outages import Child, Writer
from tests.source.proof import PROOF, SECONDS
from tests.source.workload import TERMINALS
from tests.stack.kafka_cluster import KafkaCluster
from tests.store.topics import eventually


@pytest.fixture(scope="module")
def pair() -> Iterator[KafkaCluster]:
    """Two brokers of three; the topic ``halves`` has a partition on each, with one record."""
    needs_apache_kafka()
    cluster = KafkaCluster(2, default_replication_factor="3")
    try:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.address})
        config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
        admin.create_topics([NewTopic("halves", 2, replica_assignment=[[1], [2]], config=config)])["halves"].result()
        producer = Producer({"bootstrap.servers": cluster.address})
        for partition in (0, 1):
            producer.produce("halves", b"{}", f"k{partition}", partition)
        assert producer.flush(30) == 0
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture
def three() -> Iterator[KafkaCluster]:
    needs_apache_kafka()
    cluster = KafkaCluster(3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


def test_a_leader_that_does_not_answer(pair: KafkaCluster) -> None:
    """Guarantee 1: the client answers for the other partitions, and gives none of the silent leader's an error."""
    partitions = [Partition("halves", 0), Partition("halves", 1)]
    pair.brokers[1].freeze()
    try:
        with pytest.raises(Unreachable, match="leader"):
            Kafka(pair.brokers[0].address).high_watermarks(partitions, 3)
        with pytest.raises((StartTimeout, Unreachable)), GlobalStore(pair.address, ["halves"], start_timeout=5.0):
            pytest.fail("it is ready without a partition")
    finally:
        pair.brokers[1].thaw()
    with GlobalStore(pair.address, ["halves"]) as store:
        assert sorted(store["halves"]) == ["k0", "k1"]


def test_a_topic_is_created_once_there_are_brokers_for_its_replicas(pair: KafkaCluster) -> None:
    """Guarantee 7: a service that starts while one broker is restarted waits for it, and does not end."""
    with pytest.raises(Unreachable, match=r"could not create topic 'wide': .*2 broker"):
        Kafka(pair.address).create_topic("wide")
    with pytest.raises(CompactoryError, match="9 time") as wanted:
        Kafka(pair.address).create_topic("wide", replication=9)
    assert not isinstance(wanted.value, Unreachable)


@pytest.mark.parametrize("seconds", [pytest.param(SECONDS, marks=PROOF)])
def test_one_broker_of_three_is_away_again_and_again(
    three: KafkaCluster, database: str, seeded: random.Random, seconds: float
) -> None:
    """Guarantees 7, 8, 9, 14 and 15: a store follows a source, a relay sends an outbox, and nobody misses anything."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TERMINALS)
        install(connection)
        adopt(connection, Adoption(table="terminal_acquirer", key=("terminal_id",)))
    Kafka(three.address).create_topic("orders", partitions=3)
    topic, stop, published = "terminal_acquirer", threading.Event(), list[int]()
    writer, child = Writer(database), Child(database, three.address, "")

    def publish() -> None:
        with psycopg.connect(database) as connection:
            while not stop.wait(0.005):
                published.append(number := len(published))
                Outbox().publish(connection, "orders", b"%d" % number, key=str(number % 50))
                connection.commit()

    def entries() -> dict[int, str]:
        return {entry["id"]: entry["acquirerId"] for entry in store[topic].values()}

    def rows() -> dict[int, str]:
        with psycopg.connect(database) as connection:
            return dict(connection.execute("SELECT id, acquirer_id FROM terminal_acquirer").fetchall())

    def orders() -> list[tuple[bytes, int]]:
        found = read(Kafka(three.address), "orders")
        return [(message.key() or b"", int(message.value() or b"")) for message in found]

    store = GlobalStore(three.address, [topic], missing_topic="wait", start_timeout=60.0)
    try:
        with store, OutboxRelay(database, three.address), ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish)
            with writer.writing():
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    three.disturb(seeded)
                    assert store.ready
            stop.set()
            publishing.result()
            eventually(lambda: entries() == rows(), 60)
            eventually(lambda: len(orders()) >= len(published), 60)
    finally:
        stop.set()
        child.stop()
    assert Counter(number for _, number in orders()) == Counter(published)
    of_keys = defaultdict(list)
    for key, number in orders():
        of_keys[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in of_keys.values())
