"""Clusters of several brokers, of which some are away."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from compactory import CompactoryError, Directory, DirectoryWriter, GlobalStore, StartTimeout, Unreachable
from compactory.kafka.client import Kafka
from compactory.records import Partition
from compactory_connectors.kafka.consumer_group import Group, Located
from compactory_connectors.kafka.topic_reader import read
from compactory_connectors.outbox import Outbox, OutboxRelay
from compactory_connectors.processors import ProcessRunner
from compactory_connectors.processors.pending import group_of
from compactory_connectors.schema import Adoption, adopt, install
from compactory_connectors.spark.datasource.options import ReadOptions
from compactory_connectors.spark.datasource.stream import StreamReader
from compactory_connectors.spark.topic.reading import RecordsGone
from tests.conftest import needs_apache_kafka
from tests.processors.harness import committed, registration
from tests.source.outages import Child, Writer
from tests.source.proof import PROOF, SECONDS
from tests.source.workload import TERMINALS
from tests.stack.apache_kafka import new_admin
from tests.stack.kafka_cluster import KafkaCluster
from tests.store.topics import Topics, eventually


@pytest.fixture(scope="module")
def pair() -> Iterator[KafkaCluster]:
    """Two brokers of three; the topic ``halves`` has a partition on each, with one record."""
    needs_apache_kafka()
    cluster = KafkaCluster(2, {"default.replication.factor": "3"})
    try:
        cluster.start()
        admin = new_admin({"bootstrap.servers": cluster.address})
        config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
        admin.create_topics([NewTopic("halves", 2, replica_assignment=[[1], [2]], config=config)])["halves"].result()
        producer = Producer({"bootstrap.servers": cluster.address})
        for partition in (0, 1):
            producer.produce("halves", b"{}", f"k{partition}", partition)
        assert producer.flush(30) == 0
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


@pytest.mark.proof
def test_a_store_reads_from_a_follower(three: KafkaCluster, unique: Callable[[str], str]) -> None:
    """Guarantees 1 and 6: a follower is behind its leader, and the store waits for the leader's high watermark."""
    topics, name, read_from = Topics(three.address, unique), unique("near"), list[int]()
    topics.admin.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2, 3]])])[name].result()
    eventually(lambda: len(Kafka(three.address).topics([name])) == 1)

    def note(statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(name, {}).get("partitions", {})
        read_from.extend(part["broker"] for number, part in partitions.items() if number == "0")

    near = {"client.rack": "rack-2", "statistics.interval.ms": 100, "stats_cb": note}
    directory = Directory(name, writable=True)
    with DirectoryWriter(three.address, directory) as writer:
        for away in (None, three.brokers[1], three.brokers[0]):
            if away is not None:
                away.kill()
            writer.put("k", {"n": -1})
            with GlobalStore({"bootstrap.servers": three.address, **near}, [directory]) as store:
                assert store[name]["k"] == {"n": -1}
                for number in range(50):
                    token = writer.put("k", {"n": number})
                    store.wait_for(token) if number % 2 else store.barrier()
                    assert store[name]["k"] == {"n": number}
            if away is not None:
                away.start()
                three.wait_whole()
            else:
                assert 2 in read_from


@pytest.mark.proof
def test_a_processor_outlives_the_coordinator_of_its_group(
    three: KafkaCluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Guarantee 19: its broker leaves the cluster in good order and for good; the client would wait for it."""
    topics = Topics(three.address, unique)
    events, created, failed = (topics.create(3, unique(name), replicas=3) for name in ("events", "created", "failed"))
    chain = registration(unique("chain"), events, created, failed, str(tmp_path / "book"))
    with ProcessRunner(three.address, chain):
        topics.produce(events, *((f"k{number}", "{}") for number in range(10)))
        eventually(lambda: len(committed(three.address, created)) == 10)
        admin, group = three.admin(), group_of(chain.name)
        coordinator = admin.describe_consumer_groups([group])[group].result().coordinator.id
        three.brokers[coordinator - 1].stop()
        topics.produce(events, *((f"k{number}", "{}") for number in range(10, 20)))
        eventually(lambda: len(committed(three.address, created)) == 20)


@pytest.mark.proof
def test_an_unclean_election_cuts_a_log_off(three: KafkaCluster, unique: Callable[[str], str]) -> None:
    """Guarantee 2: the log grows beyond the position, and only the epochs of leaders tell.

    A group's member and a stream of Spark say so.
    """
    topics, name = Topics(three.address, unique), unique("cut")
    config = {"cleanup.policy": "compact", "min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    topics.admin.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]], config=config)])[name].result()

    def leader_and_in_sync(*wanted: int) -> bool:
        found = topics.admin.list_topics(name, timeout=5).topics[name].partitions.get(0)
        return found is not None and [found.leader, *sorted(found.isrs)] == [*wanted]

    def read_to(offset: int) -> bool:
        group.poll(100, 0.1)
        return any(position is not None and position.read == offset for position in group.positions.values())

    eventually(lambda: leader_and_in_sync(1, 1, 2))
    topics.produce(name, *((f"k{number}", '{"n": 1}') for number in range(10)))
    group = Group(Kafka(three.address), [name], unique("group"), {})
    group.attach(lambda partitions: dict.fromkeys(partitions, Located(0, 0)))
    options = ReadOptions.read({"kafka.bootstrap.servers": three.address, "topic": name})
    stream = StreamReader(options, StructType([StructField("n", LongType())]))
    with closing(group), GlobalStore(three.address, [name]) as store:
        three.brokers[1].stop()
        eventually(lambda: leader_and_in_sync(1, 1))
        topics.produce(name, ("k0", '{"n": 2}'), ("tail", '{"n": 2}'))
        eventually(lambda: read_to(12) and "tail" in store[name])
        position = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        three.brokers[0].kill()
        three.brokers[1].start()
        eventually(lambda: leader_and_in_sync(2, 2))
        topics.produce(name, *((f"k{number}", '{"n": 3}') for number in range(1, 20)))
        [piece] = stream.partitions(position, stream.latestOffset(position, ReadAllAvailable()))
        with pytest.raises(RecordsGone, match="was cut off before offset 12 and has grown again"):
            list(stream.read(piece))
        want = {"k0": {"n": 1}} | {f"k{number}": {"n": 3} for number in range(1, 20)}
        eventually(lambda: dict(store[name]) == want)
        assert store.rebuilds() == {(name, "truncated"): 1}
        with pytest.raises(CompactoryError, match=r"was truncated, .* end offset is 10 "):
            eventually(lambda: group.poll(100, 0.1) and False)


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
