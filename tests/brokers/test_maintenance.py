"""What operators do to a cluster while all parts work."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.brokers.everything import Everything
from tests.stack.kafka_cluster import KafkaCluster
from tests.store.topics import eventually

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@pytest.fixture
def everything(
    three: KafkaCluster, database: str, unique: Callable[[str], str], tmp_path: Path
) -> Iterator[Everything]:
    """Nothing ends, or is lost, or happens twice, and servers stay ready."""
    with Everything(three.address, database, unique, tmp_path).at_work() as made:
        yield made


def test_brokers_are_restarted_one_after_another(three: KafkaCluster, everything: Everything) -> None:
    """Guarantees 7, 9, 12, 14, 16, 17 and 19: a rolling restart, the most common operation of all."""
    for broker in three.brokers:
        broker.stop()
        broker.start()
        three.wait_whole()
        everything.check()


def test_two_brokers_are_away(three: KafkaCluster, everything: Everything, seeded: random.Random) -> None:
    """All parts wait, and go on by themselves."""
    for _ in range(3):
        two = seeded.sample(three.brokers, 2)
        for broker in two:
            seeded.choice([broker.kill, broker.freeze, broker.stop])()
        time.sleep(seeded.uniform(1, 15))  # how long they are away is the experiment
        for broker in two:
            broker.thaw()
            broker.launch()
        three.wait_whole()
        everything.check()


def test_partitions_move_and_need_more_replicas(three: KafkaCluster, everything: Everything) -> None:
    """Leaders are elected, replicas reassigned; then a broker is away that min.insync.replicas needs."""
    run(three, "org.apache.kafka.tools.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    for broker in (1, 2, 3):
        reassign(three, everything.topics, [broker])
        everything.check()
    reassign(three, everything.topics, [3, 2, 1])
    everything.check()
    configure(three, everything.topics, "min.insync.replicas", "3")
    three.brokers[2].stop()
    time.sleep(15)  # longer than a record may take
    everything.check()
    configure(three, everything.topics, "min.insync.replicas", "2")
    three.brokers[2].start()
    three.wait_whole()


def run(cluster: KafkaCluster, tool: str, *arguments: str) -> str:
    """The output of one of Kafka's own tools."""
    command = [cluster.brokers[0].tool(tool), "--bootstrap-server", cluster.address, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def reassign(cluster: KafkaCluster, topics: Sequence[str], brokers: Sequence[int]) -> None:
    """Move all replicas of these topics to these brokers, of which the first leads; return when that is done."""
    tool, found = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand", cluster.admin().list_topics(timeout=10)
    parts = [(topic, number) for topic in topics for number in found.topics[topic].partitions]
    listed = [{"topic": topic, "partition": number, "replicas": [*brokers]} for topic, number in parts]
    plan = cluster.brokers[0].home / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": listed}))
    run(cluster, tool, "--reassignment-json-file", str(plan), "--execute")
    eventually(lambda: "in progress" not in run(cluster, tool, "--reassignment-json-file", str(plan), "--verify"), 120)
    places = ("--election-type", "preferred", "--all-topic-partitions")
    run(cluster, "org.apache.kafka.tools.LeaderElectionCommand", *places)


def configure(cluster: KafkaCluster, topics: Sequence[str], name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry]) for topic in topics]
    admin = cluster.admin()  # held until all is answered
    for future in admin.incremental_alter_configs(resources).values():
        future.result()
