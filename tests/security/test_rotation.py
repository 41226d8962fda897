"""A login that has worked and fails now is an outage: it is told, waited for, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from compactory import Unreachable
from compactory.kafka.client import Kafka
from tests.security.secured_kafka import SecuredKafka
from tests.stack.proxy import Proxy

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
