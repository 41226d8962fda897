"""Ends of transactions that the network delays until the next transaction (KIP-890): nothing is lost or doubled."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Literal

import psycopg
import pytest

from compactory import Directory, GlobalStore
from compactory.errors import LeaseLost
from compactory.kafka.client import Kafka
from compactory_connectors.kafka.publisher import Publisher, TopicRefused
from compactory_connectors.outbox import Outbox, OutboxRelay
from compactory_connectors.processors import Event, Processor, ProcessRunner
from compactory_connectors.schema import install
from compactory_mastered import MasteredWriter, WriteRules
from tests.mastered.conftest import log_of
from tests.processors.harness import QUICK, committed
from tests.stack.apache_kafka import ApacheKafka
from tests.stack.end_proxy import ADD_PARTITIONS, END, PRODUCE, EndProxy
from tests.store.topics import Topics, eventually

Fault = Literal["reset", "silence"]
INVALID_PRODUCER_EPOCH = 47
PHASES = [(ADD_PARTITIONS, 1), (PRODUCE, 1), (PRODUCE, 2), (END, 2)]  # the first END is the repetition
"""Before any record, after partitions were registered, between records, after all of them."""


def phases(quick: tuple[int, int], first: int = 0) -> list[Any]:
    """Return the phases from number ``first`` on; all but ``quick`` are for `make proof`."""
    return [pytest.param(phase, marks=() if phase == quick else pytest.mark.proof) for phase in PHASES[first:]]


@pytest.fixture(scope="module")
def proxy() -> Iterator[EndProxy]:
    """The proxy before a Kafka that clients reach through it alone."""
    with closing(EndProxy()) as proxy:
        kafka = ApacheKafka(listeners={"PROXIED": "PLAINTEXT"}, advertised={"PROXIED": proxy.address}, heap="400m")
        try:
            proxy.target = int(kafka.listener("PROXIED").rpartition(":")[2])
            kafka.start()
            proxy.broker = kafka.address
            yield proxy
        finally:
            kafka.remove()


@pytest.fixture
def topics(proxy: EndProxy, unique: Callable[[str], str]) -> Topics:
    return Topics(proxy.broker, unique)


def client(proxy: EndProxy, fault: Fault = "reset") -> Kafka:
    quick = {"socket.timeout.ms": 2000} if fault == "silence" else {}
    return Kafka({"bootstrap.servers": proxy.address, **quick})


def check_late(proxy: EndProxy) -> None:
    assert proxy.held.is_set()
    assert proxy.delivered.wait(10), "the late request was never delivered: the test shows nothing"
    assert proxy.late_error == INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("before", phases(quick=(PRODUCE, 2)), ids=str)
@pytest.mark.parametrize("fault", ["reset", pytest.param("silence", marks=pytest.mark.proof)])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_publisher_replaces_its_producer(
    proxy: EndProxy, topics: Topics, end: str, fault: Fault, before: tuple[int, int]
) -> None:
    """Guarantee 9: records and the offset that covers them are committed together, each once."""
    topic, offsets = topics.create(3, max_message_bytes="1000"), topics.create()
    with closing(Publisher(client(proxy, fault), topics.unique("publisher"), offsets)) as publisher:
        publisher.open()
        proxy.hold(fault, *before)
        if end == "commit":
            publisher.publish(topic, [(b"first", b"1")], (b"offset", b"1"))
        else:
            with pytest.raises(TopicRefused):
                publisher.publish(topic, [(b"large", os.urandom(2000))], (b"offset", b"1"))
        for number in (2, 3):
            records = [(b"%d-%d" % (number, key), b"%d" % number) for key in range(6)]
            publisher.publish(topic, records, (b"offset", b"%d" % number))
    check_late(proxy)
    sent = Counter(key for key, _ in committed(proxy.broker, topic))
    first = ["first"] if end == "commit" else []
    assert sent == Counter([*first, *(f"{number}-{key}" for number in (2, 3) for key in range(6))])
    assert committed(proxy.broker, offsets)[-1] == ("offset", 3)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_producer_that_was_replaced_takes_nothing_back(proxy: EndProxy, topics: Topics, end: str) -> None:
    """Guarantee 11: who has taken over meanwhile keeps the transactional id, and what it wrote is not written over."""
    topic, offsets, name = topics.create(max_message_bytes="1000"), topics.create(), topics.unique("publisher")
    with closing(Publisher(client(proxy), name, offsets)) as former:
        former.open()
        proxy.hold("reset", PRODUCE, 1)
        if end == "commit":
            former.publish(topic, [(b"a", b"1")], (b"offset", b"1"))
        else:
            with pytest.raises(TopicRefused):
                former.publish(topic, [(b"a", os.urandom(2000))], (b"offset", b"1"))
        with closing(Publisher(Kafka(proxy.broker), name, offsets)) as rival:
            rival.open()
            rival.publish(topic, [(b"a", b"2")], (b"offset", b"2"))
            with pytest.raises(LeaseLost):
                former.publish(topic, [(b"a", b"3")], (b"offset", b"3"))
            rival.publish(topic, [(b"a", b"4")], (b"offset", b"4"))
    assert [value for _, value in committed(proxy.broker, offsets)] == ([1, 2, 4] if end == "commit" else [2, 4])


@pytest.mark.parametrize("before", phases(quick=(PRODUCE, 2)), ids=str)
def test_a_relay_sends_each_message_once(
    proxy: EndProxy, topics: Topics, database: str, before: tuple[int, int]
) -> None:
    """Guarantee 14: no message is lost, and none is sent twice."""
    topic = topics.create(3)
    install(database)
    outbox = Outbox()
    with psycopg.connect(database) as connection, OutboxRelay(database, proxy.address, threads=1):
        proxy.hold("reset", *before)
        for number in range(4):
            for key in range(50):
                outbox.publish(connection, topic, json.dumps(number).encode(), key=f"{number}-{key}")
            connection.commit()
            eventually(lambda: count_messages(database) == 0, timeout=30)
    check_late(proxy)
    sent = Counter(key for key, _ in committed(proxy.broker, topic))
    assert sent == Counter(f"{number}-{key}" for number in range(4) for key in range(50))


def count_messages(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT count(*) FROM compactory.kafka_messages").fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.parametrize("before", phases(quick=(PRODUCE, 1), first=1), ids=str)
def test_a_processor_writes_each_output_once(proxy: EndProxy, topics: Topics, before: tuple[int, int]) -> None:
    """Guarantee 19: outputs and offsets are committed together, each once."""
    topic, created, failed = topics.create(), topics.create(), topics.create()

    def function(event: Event) -> dict[str, Any]:
        return dict(event.value)

    processor = Processor(
        function=function, name=topics.unique("processor"), topic=topic, created=created, failed=failed, retry=QUICK
    )
    with ProcessRunner(proxy.address, processor):
        topics.produce(topic, ("a", '{"n": 1}'))
        eventually(lambda: len(committed(proxy.broker, created)) == 1, timeout=30)
        proxy.hold("reset", *before)
        for number in range(2, 6):
            topics.produce(topic, ("a", json.dumps({"n": number})))
            eventually(lambda: len(committed(proxy.broker, created)) >= number, timeout=30)  # noqa: B023
    check_late(proxy)
    assert [value["n"] for _, value in committed(proxy.broker, created)] == [1, 2, 3, 4, 5]
    assert committed(proxy.broker, failed) == [("a", None)] * 5


@pytest.mark.parametrize("before", phases(quick=(PRODUCE, 1), first=1), ids=str)
def test_a_write_that_was_answered_is_in_the_log_once(proxy: EndProxy, topics: Topics, before: tuple[int, int]) -> None:
    """Guarantee 17: an answer says what is in the log, and a repeat finds it."""
    directory = Directory("tenants", topic=topics.create(2), rules=WriteRules())
    with GlobalStore(proxy.address, [directory]) as store, MasteredWriter(store, directory) as writer:
        writer.put("first", {"n": 0})
        proxy.hold("reset", *before)
        for number in range(1, 5):
            assert writer.put(f"k{number}", {"n": number}, idempotency_key=f"i{number}").status == "created"
        assert writer.put("k4", {"n": 4}, idempotency_key="i4").repeated
    check_late(proxy)
    assert Counter(key for key, _ in log_of(proxy.address, directory.topic)) == Counter(
        ["first", "k1", "k2", "k3", "k4"]
    )
