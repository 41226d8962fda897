"""The Apache Kafka of tests and benchmarks: the demo's, with accounts, further listeners and Kafka's tools."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from compactory.errors import Unreachable
from compactory_cli.stack.kafka import SHORT, KafkaServer, is_answering, new_admin, new_id, quick_start
from compactory_cli.stack.maven import KAFKA_VERSION, QUICK, format_storage, kafka_jars, kafka_lacks
from compactory_cli.stack.port import free_port
from tests.stack.freezing import freeze

__all__ = [
    "ADMIN",
    "LONG",
    "QUICK",
    "SHORT",
    "VERSION",
    "ApacheKafka",
    "RunningKafka",
    "jars",
    "missing",
    "needs",
    "new_admin",
    "new_id",
]

ADMIN = "admin"

LONG = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:MaxInlineLevel=15")
"""Options that Kafka's own start script gives a broker."""

VERSION = os.environ.get("TEST_KAFKA")
"""The version that TEST_KAFKA asks for, from 3.3 on; None: the demo's."""


def missing() -> str | None:
    """Return what this machine lacks to run Apache Kafka; None if it lacks nothing."""
    return kafka_lacks(VERSION or KAFKA_VERSION)


def needs(major: int) -> None:
    """Skip what Apache Kafka can do since a major version, where TEST_KAFKA asks for an older one."""
    if VERSION and int(VERSION.partition(".")[0]) < major:
        pytest.skip(f"Apache Kafka {major} is needed")


def jars() -> Path:
    """Return the folder of Kafka's jars."""
    return kafka_jars(VERSION or KAFKA_VERSION)


@dataclass(frozen=True)
class RunningKafka:
    """A Kafka that other tests use at the same time: it can't be stopped or paused from here."""

    address: str

    def wait(self, timeout: float = 90.0) -> None:
        """Return when it answers. Raises Unreachable after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not is_answering({"bootstrap.servers": self.address}):
            if time.monotonic() > deadline:
                raise Unreachable("kafka", f"{self.address} does not answer within {timeout:.0f} s")


class ApacheKafka(KafkaServer):
    """An Apache Kafka that tests set up and disturb.

    With ``users`` clients must log in by SASL/PLAIN (the password is the name) and may do what ACLs allow; ``admin``,
    who is always there, may do everything.

    ``listeners`` are further ones beside it, name → security protocol, each on a port of its own; ``settings`` say what
    they need (``listener.name.NAME.…``); ``advertised`` maps some of them to addresses that clients are told instead.
    ``scram`` maps users to passwords that are stored before the first start.
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
        super().__init__(settings=settings, java=java, heap=heap, version=VERSION or KAFKA_VERSION)
        self._users = tuple(users)
        self._protocols = dict(listeners or {})
        self._advertised = dict(advertised or {})
        self._ports = {name: free_port() for name in self._protocols}
        self._scram = dict(scram or {})

    def listener(self, name: str) -> str:
        """Return the address of one of the further listeners."""
        return f"127.0.0.1:{self._ports[name]}"

    def client(self, user: str = ADMIN) -> dict[str, str]:
        """Return client properties with which a user logs in, or the address alone where nobody has to."""
        if not self._users:
            return super().client()
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": user,
            "sasl.password": user,
        }

    def tool(self, main_class: str) -> Path:
        """Return one of Kafka's own command-line tools."""
        script = self.home / main_class.rpartition(".")[2]
        options = " ".join((QUICK, *quick_start(self._version), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"))
        script.write_text(f"#!/bin/sh\nexec java {options} -cp '{jars()}/*' {main_class} \"$@\"\n")
        script.chmod(0o755)
        return script

    def login(self, user: str = ADMIN) -> Path:
        """Return a properties file with which such a tool logs in."""
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        file = self.home / f"{user}.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={module} required username="{user}" password="{user}";\n'
        )
        return file

    def freeze(self) -> None:
        """Stop the process; its connections stay."""
        if self.pid is not None:
            freeze(self.pid)

    def thaw(self) -> None:
        """Continue after :meth:`freeze`."""
        self.signal(signal.SIGCONT)

    def _format(self, jars: Path, config: Path) -> None:
        if self._scram:
            format_storage(jars, config, new_id(), *self._accounts())
        else:
            super()._format(jars, config)

    def _properties(self) -> dict[str, str]:
        secured = self._secured() if self._users else {}
        return {**super()._properties(), **self._listening(), **secured, **self._own_settings}

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
