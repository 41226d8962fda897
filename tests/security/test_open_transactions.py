"""Who holds a partition back is asked over the connections that the store itself is given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from compactory import GlobalStore, Partition, StartTimeout
from compactory.kafka.client import Kafka
from compactory.kafka.open_transactions import OpenTransaction, open_transactions
from tests.conftest import needs_apache_kafka
from tests.security.secured_kafka import PASSWORD, USER, SecuredKafka
from tests.stack.apache_kafka import ApacheKafka, new_admin
from tests.store.topics import Topics, eventually, send


@pytest.fixture(scope="module")
def guarded_kafka() -> Iterator[ApacheKafka]:
    """A Kafka with the login SASL PLAIN, where "stranger" has no rights."""
    needs_apache_kafka()
    server = ApacheKafka(users=["stranger"])
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_over_tls_and_client_certificates(secured_kafka: SecuredKafka, unique: Any) -> None:
    """Guarantee 1: StartTimeout names the producer behind an open transaction, with TLS as well."""
    topics = Topics(secured_kafka.server.address, unique)
    name = topics.create(3)
    place = Partition(name, 2)
    topics.produce(name, ("a", "{}"), partition=2)
    with topics.transaction() as producer, topics.transaction() as later:
        send(producer, name, [("b", "{}")], partition=2)
        send(later, name, [("c", "{}")], partition=2)
        sent = time.time()
        for properties in (secured_kafka.client(), secured_kafka.certified()):
            found = open_transactions(Kafka(properties), [place, Partition(name, 0), Partition("no-such-topic", 0)], 30)
            assert found.keys() == {place}, "nothing holds the others"
            assert found[place].producer_id >= 0
            assert (found[place].transactional_id or "").startswith("txn-")
            assert 0 <= (found[place].seconds or -1) <= time.time() - sent + 30
        first = found[place].transactional_id
        scram = secured_kafka.client("SASL", sasl_mechanism="SCRAM-SHA-256", sasl_username=USER, sasl_password=PASSWORD)
        assert open_transactions(Kafka(scram), [place], 30) == {}, "another login than PLAIN: unknown"
        distrusting = secured_kafka.client() | {"ssl.ca.location": str(secured_kafka.foreign_ca)}
        assert open_transactions(Kafka(distrusting), [place], 30) == {}, "asks nobody whom it can't trust"
        with pytest.raises(StartTimeout, match=rf"of producer \d+ \(transactional.id '{first}', open for \d+ s\)"):
            GlobalStore(secured_kafka.client(), [name], stall_timeout=2).start()
        producer.abort_transaction(10)
        # An abort is acknowledged before its marker is written: for a moment the broker may still list it.
        eventually(
            lambda: open_transactions(Kafka(secured_kafka.client()), [place], 30)[place].transactional_id != first
        )
        later.abort_transaction(10)


@pytest.mark.proof
def test_with_a_login_and_without_rights(guarded_kafka: ApacheKafka, unique: Any) -> None:
    """Guarantee 1: SASL PLAIN; who may not read the topic is told nothing, and nothing is raised."""
    name, login = unique("held"), guarded_kafka.client()
    admin = new_admin(login)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    producer = Producer(login | {"transactional.id": "source-terminals"})
    producer.init_transactions(30)
    producer.begin_transaction()
    send(producer, name, [("a", "1")], 0)
    found = open_transactions(Kafka(login), [Partition(name, 0)], 30)
    assert found[Partition(name, 0)].transactional_id == "source-terminals"
    assert open_transactions(Kafka(guarded_kafka.client("stranger")), [Partition(name, 0)], 30) == {}
    assert open_transactions(Kafka(login | {"sasl.password": "wrong"}), [Partition(name, 0)], 30) == {}
    producer.abort_transaction(30)


def test_nobody_is_there() -> None:
    """It takes its time at most, and never raises."""
    began = time.monotonic()
    for servers in ("127.0.0.1:1", "127.0.0.1:1,[::1]:1"):
        assert open_transactions(Kafka(servers), [Partition("t", 0)]) == {}
    assert time.monotonic() - began < 30


def test_what_is_not_known_is_not_said() -> None:
    assert str(OpenTransaction(producer_id=7)) == "an open transaction of producer 7"
    named = OpenTransaction(producer_id=7, transactional_id="t", seconds=93.4)
    assert str(named) == "an open transaction of producer 7 (transactional.id 't', open for 93 s)"
