"""A login that has worked and fails now is an outage: it is told, waited for, and ends nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from compactory import GlobalStore, Unreachable
from compactory.kafka.client import Kafka
from compactory_connectors.processors import ProcessRunner
from compactory_connectors.sink import TransactionalSink
from tests.processors.harness import committed, registration
from tests.security.secured_kafka import SecuredKafka, logged
from tests.sink.harness import COUNTERS, count
from tests.stack.proxy import Proxy
from tests.store.topics import eventually

Properties = dict[str, Any]
SASL_HANDSHAKE = 17  # the request by its number in Kafka's protocol
TOLD = "check sasl.username and sasl.password"


@dataclass(frozen=True)
class Account:
    """A user whose connections log in again every second."""

    kafka: SecuredKafka
    name: str

    @property
    def properties(self) -> Properties:
        own = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": self.name, "sasl.password": "first"}
        address = self.kafka.server.listener("AGAIN")
        return {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", **own}

    @contextmanager
    def locked_out(self) -> Iterator[None]:
        """Have the broker refuse the password that its processes know."""
        self.kafka.set_password(self.name, "second")
        yield
        self.kafka.set_password(self.name, "first")


@pytest.fixture
def account(secured_kafka: SecuredKafka, unique: Callable[[str], str]) -> Account:
    made = Account(secured_kafka, unique("user"))
    secured_kafka.set_password(made.name, "first")
    return made


def test_a_connection_that_is_lost_within_a_login_is_not_a_refusal(account: Account) -> None:
    proxy = Proxy(int(account.properties["bootstrap.servers"].rpartition(":")[2]))

    def cut(data: bytes) -> None:
        if int.from_bytes(data[4:6]) == SASL_HANDSHAKE:
            proxy.cut()

    proxy.watch = cut
    kafka = Kafka(account.properties | {"bootstrap.servers": proxy.address})
    try:
        with pytest.raises(Unreachable, match="mechanism handshake failed: Local: "):
            kafka.topic_names(timeout=3)
        proxy.watch = None
        assert kafka.topic_names() is not None
    finally:
        proxy.close()


def test_a_client_goes_on_with_a_password_that_is_valid_again(account: Account) -> None:
    kafka = Kafka(account.properties)
    assert kafka.topic_names() is not None
    with account.locked_out():
        kafka.close()
        with pytest.raises(Unreachable, match=TOLD):
            kafka.topic_names(timeout=3)
    assert kafka.topic_names() is not None


def test_a_store_goes_on_and_logs_it_once(account: Account, unique: Callable[[str], str]) -> None:
    topic = account.kafka.topic(unique("kept"))
    with logged() as lines, GlobalStore(account.properties, [topic]) as store:
        with account.locked_out():
            eventually(lambda: TOLD in lines.getvalue())
            assert store[topic]["1"] == {"n": 1}
        account.kafka.put(topic, "2", 2)
        eventually(lambda: "2" in store[topic])
    told = [line for line in lines.getvalue().splitlines() if re.match("Kafka client: .*credentials", line)]
    assert len(told) == 1, told


@pytest.mark.proof
def test_an_idle_sink_says_so_and_waits(account: Account, migrated: str, unique: Callable[[str], str]) -> None:
    """With a partition or without one: it sends nothing that could fail, and its client does not raise."""
    topic, name = account.kafka.topic(unique("sunk")), unique("sink")
    with psycopg.connect(migrated, autocommit=True) as sql, ExitStack() as stack:
        sql.execute(COUNTERS)
        sinks = [TransactionalSink(account.properties, migrated, topic, count, name=name) for _ in range(2)]
        for sink in sinks:
            stack.enter_context(sink)
        eventually(lambda: sql.execute("SELECT count(*) FROM counters").fetchone() == (1,))
        with account.locked_out():
            for sink in sinks:
                eventually(lambda sink=sink: TOLD in str(sink.board.error))
        assert all(sink.alive for sink in sinks)
        account.kafka.put(topic, "2", 2)
        eventually(lambda: sql.execute("SELECT count(*) FROM counters").fetchone() == (2,))


@pytest.mark.proof
def test_an_idle_processor_says_so_and_waits(account: Account, tmp_path: Any, unique: Callable[[str], str]) -> None:
    topic, created, failed = (account.kafka.topic(unique(name)) for name in ("events", "created", "failed"))
    chain = registration(unique("chain"), topic, created, failed, str(tmp_path / "book"))
    with ProcessRunner(account.properties, chain) as runner:
        eventually(lambda: runner.board.counters["events"] == 1)
        with account.locked_out():
            eventually(lambda: TOLD in str(runner.board.error))
            assert runner.alive
        account.kafka.put(topic, "2", 2)
        eventually(lambda: {"1", "2"} == {key for key, _ in committed(account.kafka.server.address, created)})
        assert runner.board.error is None
