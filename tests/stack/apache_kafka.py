"""A one-node Apache Kafka (KRaft) from its Maven Central jars, for tests and benchmarks."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compactory.errors import Unreachable
from compactory_cli.stack.port import free_port
from compactory_cli.stack.process import Process, Server
from tests.stack.freezing import freeze
from tests.stack.maven import alone, fetch

__all__ = [
    "ADMIN",
    "LONG",
    "QUICK",
    "SHORT",
    "ApacheKafka",
    "RunningKafka",
    "answers",
    "identity",
    "missing",
    "needs",
    "new_admin",
]

ADMIN = "admin"

QUICK = "-XX:TieredStopAtLevel=1"
"""Has a JVM compile quickly in place of well: what lives for a test only spends more on the second compiler."""

SHORT = (QUICK, "-XX:+UseSerialGC")
"""Options of a broker that lives for tests only."""

_UNLOGGED = "-Xlog:disable"
"""The JVM's own log goes to the output of Kafka's tools, which tests read."""

LONG = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:MaxInlineLevel=15")
"""Options that Kafka's own start script gives a broker."""

POM = Path(__file__).with_name("pom.xml")
VERSION = os.environ.get("TEST_KAFKA")
"""The version that TEST_KAFKA asks for, from 3.3 on; None: that of the pom."""

JARS = Path(__file__).parents[2] / "build" / "kafka" / (VERSION or "libs")
CHECKPOINT = JARS / "bootstrap.checkpoint"
CLASSES = JARS / "classes.jsa"


def missing() -> str | None:
    """What this machine lacks to run Apache Kafka, or None."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent == ["mvn"] and (JARS / ".complete").exists():
        return None
    return f"{' and '.join(absent)} not on PATH" if absent else None


def needs(major: int) -> None:
    """Skip what Apache Kafka can do since a major version, where TEST_KAFKA asks for an older one."""
    if VERSION and int(VERSION.partition(".")[0]) < major:
        pytest.skip(f"Apache Kafka {major} is needed")


def jars() -> Path:
    """The folder of Kafka's jars, fetched with Maven on first use and again when the pom has changed."""
    mark = JARS / ".complete"
    with alone(JARS.parent):
        if not mark.exists() or mark.read_bytes() != POM.read_bytes():
            shutil.rmtree(JARS, ignore_errors=True)
            chosen = [f"-Dkafka={VERSION}"] if VERSION else []
            fetch("Apache Kafka", "-f", str(POM), *chosen, "dependency:copy-dependencies", f"-DoutputDirectory={JARS}")
            mark.write_bytes(POM.read_bytes())
        if not CHECKPOINT.exists():
            _keep_checkpoint()
    return JARS


def _archived() -> tuple[str, ...]:
    """Options of a JVM that reads Kafka's classes from an archive, which halves the CPU of a start.

    A JVM that the archive does not fit, after a copy of the folder or an update of Java, reads the jars without a word.
    """
    with alone(jars()):
        if not CLASSES.exists():
            _keep_classes()
    return (f"-XX:SharedArchiveFile={CLASSES}", _UNLOGGED)


def _keep_classes() -> None:
    """Have the JVM of a broker write the classes that it has loaded.

    Only a whole archive gets the name, because a JVM crashes on a part of one. A JVM without an archive of its own
    classes can't write any, nor can one on a full disk: then an empty file takes its place, which every JVM ignores.
    """
    partial = CLASSES.with_suffix(".partial")
    server = ApacheKafka(java=(*SHORT, f"-XX:ArchiveClassesAtExit={partial}", _UNLOGGED))
    whole = False
    try:
        with contextlib.suppress(Unreachable):
            server.start()
            process = server.launch()
            process.signal(signal.SIGTERM)
            whole = process.wait(120) == 128 + signal.SIGTERM and partial.exists()
    finally:
        server.remove()
    if whole:
        partial.rename(CLASSES)
    else:
        partial.unlink(missing_ok=True)
        CLASSES.touch()


def identity() -> str:
    """A new id as Kafka writes them; with "C" it begins with no dash, which a tool would take for an option's."""
    return "C" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def _format(config: Path, *accounts: str) -> None:
    """Have Kafka's own tool format the storage of a broker."""
    command = ["java", QUICK, "-cp", f"{JARS}/*", "kafka.tools.StorageTool", "format", "-t", identity()]
    subprocess.run([*command, "-c", str(config), *accounts], check=True, capture_output=True)


def _keep_checkpoint() -> None:
    """Format once, and keep what is the same for every broker without accounts."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
            "listeners=CONTROLLER://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={folder}/data\n"
        )
        _format(config)
        shutil.copy(Path(folder) / "data" / CHECKPOINT.name, CHECKPOINT)


def new_admin(client: Mapping[str, str]) -> AdminClient:
    """An admin client that asks anew each second.

    By default one that is told of no broker, because the only one missed a heartbeat, waits for a controller for good.
    """
    return AdminClient({**client, "log_level": 0, "topic.metadata.refresh.interval.ms": "1000"})


def answers(client: Mapping[str, str]) -> bool:
    """Whether the broker at the end of these client properties does."""
    try:
        return bool(new_admin(client).list_topics(timeout=1).brokers)
    except KafkaException:
        return False


@dataclass(frozen=True)
class RunningKafka:
    """A Kafka that other tests use at the same time: it can't be stopped or paused from here."""

    address: str

    def wait(self, timeout: float = 90.0) -> None:
        """Return when it answers. Raises Unreachable after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not answers({"bootstrap.servers": self.address}):
            if time.monotonic() > deadline:
                raise Unreachable("kafka", f"{self.address} does not answer within {timeout:.0f} s")


class ApacheKafka(Server):
    """Broker and controller in one JVM on 127.0.0.1; the log survives :meth:`stop`, :meth:`kill` and a new start.

    With ``users`` clients must log in by SASL/PLAIN (the password is the name) and may do what ACLs allow; ``admin``,
    who is always there, may do everything.

    ``listeners`` are further ones beside it, name → security protocol, each on a port of its own; ``settings`` say what
    they need (``listener.name.NAME.…``); ``advertised`` maps some of them to addresses that clients are told instead.
    ``scram`` maps users to passwords that are stored before the first start. ``java`` are options of the JVM, by
    default for a short life and a quick start.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        users: Iterable[str] = (),
        listeners: Mapping[str, str] | None = None,
        advertised: Mapping[str, str] | None = None,
        scram: Mapping[str, str] | None = None,
        java: Iterable[str] | None = None,
        heap: str = "640m",
    ) -> None:
        super().__init__()
        self._controller = free_port()
        self._users = tuple(users)
        self._protocols = dict(listeners or {})
        self._advertised = dict(advertised or {})
        self._ports = {name: free_port() for name in self._protocols}
        self._scram = dict(scram or {})
        self._java = java
        self._settings = {**(self._secured() if self._users else {}), **(settings or {})}
        self._heap = heap

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def listener(self, name: str) -> str:
        """The address of one of the further listeners."""
        return f"127.0.0.1:{self._ports[name]}"

    def client(self, user: str = ADMIN) -> dict[str, str]:
        """Client properties with which a user logs in, or the address alone where nobody has to."""
        if not self._users:
            return {"bootstrap.servers": self.address}
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": user,
            "sasl.password": user,
        }

    def tool(self, main_class: str) -> Path:
        """One of Kafka's own command-line tools."""
        script = self.home / main_class.rpartition(".")[2]
        java = f"java {QUICK} {' '.join(_archived())} -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp '{jars()}/*'"
        script.write_text(f'#!/bin/sh\nexec {java} {main_class} "$@"\n')
        script.chmod(0o755)
        return script

    def login(self, user: str = ADMIN) -> Path:
        """A properties file with which such a tool logs in."""
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        file = self.home / f"{user}.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={module} required username="{user}" password="{user}";\n'
        )
        return file

    def start(self, timeout: float = 90.0) -> None:
        """Format the storage on first use, start, return when the broker answers. Does nothing while it runs."""
        self.launch().wait_until(lambda: answers(self.client()), timeout)

    def launch(self) -> Process:
        """Start without waiting for the first answer. The process ends with the thread that calls this."""
        if self._process is None:
            java = (*SHORT, *_archived()) if self._java is None else self._java
            classpath, config = f"{jars()}/*", self.home / "server.properties"
            self._prepare(config)
            self._process = Process(
                "kafka",
                ["java", f"-Xmx{self._heap}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
                + [*java, "-cp", classpath, "kafka.Kafka", config],
                log=self.home / "kafka.log",
                folder=self.home,
            )
        self._process.start()
        return self._process

    def stop(self) -> None:
        if self._process:
            self._process.stop()

    def freeze(self) -> None:
        """The process stops, its connections stay."""
        if self.pid is not None:
            freeze(self.pid)

    def thaw(self) -> None:
        if self._process:
            self._process.signal(signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def _prepare(self, config: Path) -> None:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            **self._listening(),
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
            **self._settings,
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        storage = self.home / "data"
        if self._scram:
            _format(config, *self._accounts())
        else:  # the same without a JVM
            storage.mkdir(exist_ok=True)
            shutil.copy(CHECKPOINT, storage)
            known = {"version": 1, "node.id": 1, "cluster.id": identity(), "directory.id": identity()}
            (storage / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in known.items()))

    def _listening(self) -> dict[str, str]:
        own = "SASL_PLAINTEXT" if self._users else "PLAINTEXT"
        public = {own: self.address} | {name: self.listener(name) for name in self._protocols}
        addresses = [f"{name}://{address}" for name, address in public.items()]
        protocols = {"CONTROLLER": "PLAINTEXT", own: own, **self._protocols}
        return {
            "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{self._controller}"]),
            "advertised.listeners": ",".join(
                f"{name}://{self._advertised.get(name, address)}" for name, address in public.items()
            ),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "security.inter.broker.protocol": own,
        }

    def _accounts(self) -> list[str]:
        return [
            argument
            for user, password in self._scram.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for argument in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
        ]

    def _secured(self) -> dict[str, str]:
        accounts = " ".join(f'user_{name}="{name}"' for name in (ADMIN, *self._users))
        login = (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{ADMIN}" password="{ADMIN}"'
        )
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{login} {accounts};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # ANONYMOUS is broker and controller talking to each other on the plain listener.
            "super.users": f"User:{ADMIN};User:ANONYMOUS",
        }
