"""A one-node Apache Kafka (KRaft) from its jars, for demo, tests and benchmarks."""

from __future__ import annotations

import base64
import shutil
import signal
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compactory.errors import Unreachable

from .maven import KAFKA_VERSION, QUICK, kafka_jars, locked
from .port import free_port
from .process import Server

__all__ = ["SHORT", "KafkaServer", "is_answering", "new_admin", "new_id", "quick_start"]

SHORT = (QUICK, "-XX:+UseSerialGC")
"""Options of the JVM for a broker that lives for minutes."""

_UNLOGGED = "-Xlog:disable"  # the JVM's own log goes to the output of Kafka's tools


def quick_start(version: str = KAFKA_VERSION) -> tuple[str, ...]:
    """Return options of a JVM that reads Kafka's classes from an archive, which halves the CPU of a start.

    The first call starts a broker to make the archive. A JVM that the archive does not fit reads the jars.
    """
    archive = kafka_jars(version) / "classes.jsa"
    with locked(archive.parent):
        if not archive.exists():
            _keep_classes(archive, version)
    return (f"-XX:SharedArchiveFile={archive}", _UNLOGGED)


def _keep_classes(archive: Path, version: str) -> None:
    """Write the archive of the classes that a broker loads.

    Only a complete archive gets the name, because a JVM crashes on a part of one. A JVM that can't write one leaves an
    empty file, which every JVM ignores.
    """
    partial = archive.with_suffix(".partial")
    server = KafkaServer(java=(*SHORT, f"-XX:ArchiveClassesAtExit={partial}", _UNLOGGED), version=version)
    is_complete = False
    try:
        with suppress(Unreachable):
            server.start()
            server.signal(signal.SIGTERM)
            is_complete = server.wait(120) == 128 + signal.SIGTERM and partial.exists()
    finally:
        server.remove()
    if is_complete:
        partial.rename(archive)
    else:
        partial.unlink(missing_ok=True)
        archive.touch()


def new_id() -> str:
    """Return a new id as Kafka writes ids. It begins with C, because a tool takes a leading dash for an option."""
    return "C" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def new_admin(client: Mapping[str, str]) -> AdminClient:
    """Return an admin client that asks for brokers each second.

    By default a client that gets an empty list, because the only broker missed a heartbeat, waits for ever.
    """
    return AdminClient({**client, "log_level": 0, "topic.metadata.refresh.interval.ms": "1000"})


def is_answering(client: Mapping[str, str]) -> bool:
    """Return True if the broker of these client properties answers within a second."""
    try:
        return bool(new_admin(client).list_topics(timeout=1).brokers)
    except KafkaException:
        return False


class KafkaServer(Server):
    """Broker and controller in one JVM on 127.0.0.1. Its log survives :meth:`stop`, :meth:`kill` and a new start.

    ``settings`` are further properties of the broker. ``java`` are options of the JVM, by default for a quick start.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        java: Iterable[str] | None = None,
        heap: str = "640m",
        version: str = KAFKA_VERSION,
    ) -> None:
        super().__init__("kafka", home, port=port)
        self._controller = free_port()
        self._own_settings = dict(settings or {})
        self._java = java
        self._heap = heap
        self._version = version
        self.title = f"Apache Kafka {version}"

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return f"127.0.0.1:{self.port}"

    def client(self) -> dict[str, str]:
        """Return the properties of a client that may do everything."""
        return {"bootstrap.servers": self.address}

    def start(self, timeout: float = 90.0) -> None:
        """Format the storage on first use, start, and wait until the broker answers. Does nothing while it runs."""
        self.launch()
        self.wait_until(lambda: is_answering(self.client()), timeout)

    def launch(self) -> None:
        """Start without waiting for the first answer. The process ends with the thread that calls this."""
        if not self._command:
            java = (*SHORT, *quick_start(self._version)) if self._java is None else self._java
            jars, config = kafka_jars(self._version), self.home / "server.properties"
            self.home.mkdir(parents=True, exist_ok=True)
            config.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
            self._format(jars, config)
            self._command = ["java", f"-Xmx{self._heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *java]
            self._command += ["-cp", f"{jars}/*", "kafka.Kafka", str(config)]
        super().start()

    def remove(self) -> None:
        """Kill the server and delete its folder."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def _format(self, jars: Path, _config: Path) -> None:
        """Write what Kafka's own tool would write, without a JVM."""
        storage = self.home / "data"
        storage.mkdir(exist_ok=True)
        shutil.copy(jars / "bootstrap.checkpoint", storage)
        meta = {"version": 1, "node.id": 1, "cluster.id": new_id(), "directory.id": new_id()}
        (storage / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in meta.items()))

    def _properties(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.home / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.backoff.ms": "200",
            "auto.create.topics.enable": "false",
            "metadata.max.idle.interval.ms": "0",  # else two records a second into the metadata of an idle broker
            **({"num.network.threads": "1", "num.io.threads": "2"} if self._java is None else {}),
            **self._own_settings,
        }
