"""Client properties: refused early, all problems at once, secrets hidden; and the client's errors mapped."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from compactory import CompactoryError, ConfigError, GlobalStore, Partition, Unreachable
from compactory.kafka.client import Kafka, event_kind, kafka_errors
from tests.store.topics import Topics

SECRET = "geheim-123"


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ("", "bootstrap.servers is missing"),
        ({}, "bootstrap.servers is missing"),
        (None, "kafka must be host:port"),
        ("http://host:9092", "is a URL"),
        ("host:99999", "no port between"),
        ({"bootstrap.servers": "h:1", "isolation.level": "read_uncommitted"}, "the store needs read_committed"),
        ({"bootstrap.servers": "h:1", "auto.offset.reset": "earliest"}, "the store needs error"),
        ({"bootstrap.servers": "h:1", "fetch.wait.max.mss": 1}, "did you mean 'fetch.wait.max.ms'?"),
        ({"bootstrap.servers": "h:1", "bootstrap_server": "h"}, "did you mean 'bootstrap.servers'?"),
        ({"bootstrap.servers": "h:1", "fetch": {"wait": {"max": {"ms": "soon"}}}}, "Invalid value"),
        ({"bootstrap.servers": "h:1", "ssl.truststore.location": "x.jks"}, "ssl.ca.location"),
    ],
)
def test_bad_properties_are_refused(kafka: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Kafka(kafka)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Kafka({"bootstrap.servers": "h:1", "foo": 1, "bar": 2, "session.timeout.ms": "x"})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("library", "remedy"),
    [("gevent", "gevent.monkey.patch_all(thread=False)"), ("eventlet", "eventlet.monkey_patch(thread=False)")],
)
def test_threads_that_are_greenlets_are_refused(library: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start would hang for ever: no time-out fires, as the client's calls let no other greenlet run."""
    monkeypatch.setattr(threading, "Lock", type("Lock", (), {"__module__": f"{library}.thread"}))
    with pytest.raises(ConfigError) as caught:
        GlobalStore({"bootstrap.servers": "h:1", "foo": 1}, ["d"], stall_timeout=0)
    assert len(caught.value.problems) == 3
    assert f"patched by {library}" in str(caught.value)
    assert remedy in str(caught.value)


def test_secrets_are_hidden_from_repr_and_errors() -> None:
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "user",
        "sasl.password": SECRET,
    }
    assert SECRET not in repr(Kafka(properties))
    assert "user" in repr(Kafka(properties))
    for bad in ({"ssl.key.pem": SECRET}, {"ssl.key.password": SECRET, "foo": 1}, {"sasl.oauthbearer.config": SECRET}):
        try:
            text = repr(Kafka(properties | bad))
        except ConfigError as error:
            text = f"{error!r} {error}"
        assert SECRET not in text


def test_a_failed_login_is_a_configuration_error(topics: Topics) -> None:
    properties = {
        "bootstrap.servers": topics.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "user",
        "sasl.password": SECRET,
    }
    with pytest.raises(ConfigError, match=r"refused to describe topics.*check security\.protocol") as caught:
        Kafka(properties).topics(["x"], timeout=10)
    assert SECRET not in str(caught.value)


def test_ends_count_open_transactions_and_stable_offsets_do_not(topics: Topics) -> None:
    """Guarantee 1: a read_committed consumer is told the stable offset, which would be too early."""
    from tests.store.topics import send

    name = topics.create(cleanup_policy="delete")
    place = Partition(name, 0)
    kafka = Kafka(topics.address)
    topics.produce(name, ("a", "1"), ("b", "2"))
    topics.cut(name, 1)
    with topics.transaction() as producer:
        send(producer, name, [("c", "3")])
        assert kafka.high_watermarks([place, Partition(name, 7), Partition("absent", 0)]) == {place: 3}
        assert kafka.stable_offsets([place]) == {place: 2}
        assert kafka.log_starts([place]) == {place: 1}
        producer.abort_transaction(10)


def test_topics_are_described_and_never_created(topics: Topics) -> None:
    kafka = Kafka(topics.address)
    name = topics.create(3)
    found = kafka.topics([name, "absent-topic"])
    assert found.keys() == {name}
    assert found[name].partitions == (0, 1, 2)
    assert found[name].topic_id
    assert kafka.topic_configs([name, "absent-topic"])[name]["cleanup.policy"] == "compact"
    assert name in kafka.topic_names()
    assert "absent-topic" not in kafka.topic_names()
    assert kafka.create_topic(name) is False
    assert kafka.cluster_id()


def test_every_error_of_the_client_is_mapped() -> None:
    """Whatever code the library has or will have: one of ours comes out, with the cause kept."""
    codes = [value for name, value in vars(KafkaError).items() if isinstance(value, int) and name.isupper()]
    assert len(codes) > 100
    for code in codes:
        with pytest.raises(CompactoryError) as caught, kafka_errors("test", "h:1"):
            raise KafkaException(KafkaError(code))
        assert isinstance(caught.value.__cause__, KafkaException)
        assert event_kind(KafkaError(code)) in ("end", "lost", "refused", "passing")
    with pytest.raises(Unreachable), kafka_errors("test", "h:1"):
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (KafkaError._NOENT, "Failed to query partition leaders: No leaders found"),
        (KafkaError._DESTROY_BROKER, "Failed while waiting for response from broker"),
        (KafkaError.FENCED_LEADER_EPOCH, "Leader epoch is older than broker epoch"),
    ],
)
def test_a_broker_that_comes_back_counts_as_not_reached(code: int, told: str) -> None:
    """As librdkafka answers meanwhile: seen in a sink's history, and in a barrier while a broker was killed."""
    with pytest.raises(Unreachable, match=told), kafka_errors("ask", "h:1"):
        raise KafkaException(KafkaError(code, told))
