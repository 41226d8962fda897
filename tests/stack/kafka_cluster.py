"""Several brokers of one Apache Kafka, of which some may be away."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from compactory_cli.stack.port import free_port
from tests.stack.apache_kafka import ApacheKafka, new_admin, new_id
from tests.store.topics import eventually

__all__ = ["KafkaCluster"]

_SETTINGS = {
    "broker.session.timeout.ms": "3000",  # after which another replica leads
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


class KafkaCluster:
    """So many brokers, each of which is a controller too. Topics have a replica on each, and need most of them."""

    def __init__(self, brokers: int, given: Mapping[str, str] | None = None) -> None:
        controllers, cluster = [free_port() for _ in range(brokers)], new_id()
        most = str(brokers // 2 + 1)
        settings = _SETTINGS | {
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1)),
            "default.replication.factor": str(brokers),
            "min.insync.replicas": most,
            "offsets.topic.replication.factor": str(brokers),
            "transaction.state.log.replication.factor": str(brokers),
            "transaction.state.log.min.isr": most,
            **(given or {}),
        }
        self.brokers = [_Broker(n, port, cluster, settings) for n, port in enumerate(controllers, 1)]

    @property
    def address(self) -> str:
        """The bootstrap addresses."""
        return ",".join(broker.address for broker in self.brokers)

    def admin(self) -> AdminClient:
        return new_admin({"bootstrap.servers": self.address})

    def start(self) -> None:
        """Start all; return when every replica is in sync."""
        for broker in self.brokers:
            broker.launch()
        self.wait_whole()

    def wait_whole(self) -> None:
        """Return when every replica is in sync."""
        eventually(self._is_whole, 120)

    def disturb(self, dice: random.Random) -> None:
        """Kill, stop or freeze a broker; have it back, and the cluster whole."""
        broker = dice.choice(self.brokers)
        dice.choice([broker.kill, broker.stop, broker.freeze])()
        time.sleep(dice.uniform(0.5, 8.0))  # how long it is away is the experiment
        broker.thaw()
        broker.start()  # until it answers: the others may think that it was never away
        self.wait_whole()

    def remove(self) -> None:
        for broker in self.brokers:
            broker.remove()

    def _is_whole(self) -> bool:
        try:
            found: ClusterMetadata = self.admin().list_topics(timeout=2)
        except KafkaException:
            return False
        partitions = [part for topic in found.topics.values() for part in topic.partitions.values()]
        return len(found.brokers) == len(self.brokers) and all(len(p.isrs) == len(p.replicas) for p in partitions)


class _Broker(ApacheKafka):
    def __init__(self, number: int, controller: int, cluster: str, settings: Mapping[str, str]) -> None:
        super().__init__(settings={**settings, "node.id": str(number), "broker.rack": f"rack-{number}"}, heap="320m")
        self._controller = controller
        self._identity = f"version=1\nnode.id={number}\ncluster.id={cluster}\ndirectory.id={new_id()}\n"

    def _format(self, jars: Path, config: Path) -> None:
        super()._format(jars, config)
        (self.home / "data" / "meta.properties").write_text(self._identity)
